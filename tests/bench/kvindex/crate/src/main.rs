//! Dynamo's KV index and block hashing on the benchmark's scenario, which ../scenario.go describes. Prints one line for
//! every figure: row, measure, value, separated by tabs, as crate.tsv holds them. Arguments: a part (hash, events,
//! lookup, memory), and for memory a population.
use dynamo_kv_router::indexer::{SyncIndexer, WorkerTask};
use dynamo_kv_router::protocols::{
    compute_block_hash_for_seq, compute_seq_hash_for_block, BlockHashOptions, ExternalSequenceBlockHash, KvCacheEvent,
    KvCacheEventData, KvCacheRemoveData, KvCacheStoreData, KvCacheStoredBlockData, LocalBlockHash, RouterEvent,
};
use dynamo_kv_router::ConcurrentRadixTreeCompressed;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const LENGTH: usize = 2048;
const WORKERS: u64 = 64;
const SEQUENCES: u64 = 512;
const SHARED: u64 = 8;
const PREFIX: usize = 100;
const TAILS: u64 = 5000;
const TAIL: u64 = 3;
const ROUNDS1: usize = 400;
const ROUNDS16: usize = 20;

fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

fn local(kind: u64, id: u64, i: u64) -> u64 {
    mix(kind << 56 | id << 24 | i)
}

fn sequence(pop: char, s: u64, n: usize) -> Vec<u64> {
    (0..n as u64)
        .map(|i| match pop {
            'R' => local(3, s, i),
            _ if (i as usize) < PREFIX => local(1, s % SHARED, i),
            _ => local(2, s, i),
        })
        .collect()
}

fn tail(w: u64, k: u64) -> Vec<u64> {
    let mut out = sequence('U', k, PREFIX);
    out.extend((0..TAIL).map(|j| local(4, w * 8192 + k, j)));
    out
}

/// Engine hashes: the chained sequence hash, as the mocker's workers use.
fn names(local: &[u64]) -> Vec<u64> {
    compute_seq_hash_for_block(&local.iter().map(|&l| LocalBlockHash(l)).collect::<Vec<_>>())
}

fn event(worker: u64, data: KvCacheEventData) -> RouterEvent {
    RouterEvent::new(worker, KvCacheEvent { event_id: 0, data, dp_rank: 0 })
}

fn stored(worker: u64, local: &[u64], name: &[u64], from: usize, to: usize) -> RouterEvent {
    let block = |i: usize| KvCacheStoredBlockData {
        block_hash: ExternalSequenceBlockHash(name[i]),
        tokens_hash: LocalBlockHash(local[i]),
        mm_extra_info: None,
    };
    event(
        worker,
        KvCacheEventData::Stored(KvCacheStoreData {
            parent_hash: from.checked_sub(1).map(|i| ExternalSequenceBlockHash(name[i])),
            start_position: None,
            blocks: (from..to).map(block).collect(),
        }),
    )
}

fn removed(worker: u64, name: &[u64], from: usize, to: usize) -> RouterEvent {
    let block_hashes = (from..to).rev().map(|i| ExternalSequenceBlockHash(name[i])).collect();
    event(worker, KvCacheEventData::Removed(KvCacheRemoveData { block_hashes }))
}

fn holder(s: usize) -> u64 {
    s as u64 / SHARED + 1
}

fn all(pop: char, n: usize) -> Vec<(Vec<u64>, Vec<u64>)> {
    let count = if pop == 'R' { SHARED } else { SEQUENCES };
    (0..count).map(|s| sequence(pop, s, n)).map(|l| (names(&l), l)).map(|(n, l)| (l, n)).collect()
}

fn populate(pop: char, f: &mut dyn FnMut(RouterEvent)) {
    if pop == 'T' {
        for w in 1..=WORKERS {
            for k in 0..SHARED {
                let l = sequence('U', k, PREFIX);
                f(stored(w, &l, &names(&l), 0, PREFIX));
            }
        }
        for k in 0..TAILS {
            for w in 1..=WORKERS {
                let l = tail(w, k);
                f(stored(w, &l, &names(&l), PREFIX, PREFIX + TAIL as usize));
            }
        }
        return;
    }
    let sequences = all(pop, LENGTH);
    for from in (0..LENGTH).step_by(64) {
        for (s, (l, n)) in sequences.iter().enumerate() {
            if pop == 'U' {
                f(stored(holder(s), l, n, from, from + 64));
                continue;
            }
            for w in 1..=WORKERS {
                f(stored(w, l, n, from, from + 64));
            }
        }
    }
}

const PHASES: [&str; 7] = ["stored64", "stored1", "stored16", "removed16", "removed1", "dup64", "removed64"];

/// Calls `f` with the events of a phase; the phases are applied in order to one index.
fn phase(name: &str, f: &mut dyn FnMut(RouterEvent)) {
    if name == "stored64" || name == "dup64" {
        return populate('U', f);
    }
    let sequences = all('U', LENGTH + ROUNDS1 + ROUNDS16 * 16);
    let (rounds, step, base) = match name {
        "stored1" | "removed1" => (ROUNDS1, 1, LENGTH),
        "stored16" | "removed16" => (ROUNDS16, 16, LENGTH + ROUNDS1),
        _ => (LENGTH / 64, 64, 0),
    };
    for round in 0..rounds {
        for (s, (l, n)) in sequences.iter().enumerate() {
            if name.starts_with("stored") {
                let from = base + round * step;
                f(stored(holder(s), l, n, from, from + step));
            } else {
                let from = base + (rounds - 1 - round) * step;
                f(removed(holder(s), n, from, from + step));
            }
        }
    }
}

fn queries(pop: char, depth: usize) -> Vec<Vec<LocalBlockHash>> {
    (0..1000u64)
        .map(|k| {
            let mut q = match pop {
                'T' => tail(1 + mix(k) % WORKERS, mix(k + 7) % TAILS),
                'R' => sequence('R', mix(k ^ 0xABCD) % SHARED, LENGTH),
                _ => sequence('U', mix(k ^ 0xABCD) % SEQUENCES, LENGTH),
            };
            q.truncate(depth);
            q.extend((depth as u64..LENGTH as u64).map(|i| local(9, k, i)));
            q.into_iter().map(LocalBlockHash).collect()
        })
        .collect()
}

fn print(row: &str, measure: &str, value: f64) {
    println!("{row}\t{measure}\t{value}");
}

fn percentile(sorted: &[u64], p: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * p) as usize] as f64 / 1000.0
}

fn hashing() {
    let tokens: Vec<u32> = (0..32768u64).map(|i| (mix(i) % 151_936) as u32).collect();
    for size in [4, 16, 32, 64] {
        let (mut first, mut second, mut both) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..2000 {
            let from = Instant::now();
            let local = compute_block_hash_for_seq(&tokens, size, BlockHashOptions::default());
            let middle = Instant::now();
            let chain = std::hint::black_box(compute_seq_hash_for_block(&local));
            let end = Instant::now();
            second.push((end - middle).as_nanos() as u64);
            first.push((middle - from).as_nanos() as u64);
            both.push((end - from).as_nanos() as u64);
            drop(chain);
        }
        first.sort_unstable();
        second.sort_unstable();
        both.sort_unstable();
        let row = format!("hash 32768 tokens bs={size}");
        print(&row, "local p50 us", percentile(&first, 0.5));
        print(&row, "chain p50 us", percentile(&second, 0.5));
        print(&row, "both p50 us", percentile(&both, 0.5));
    }
}

/// The event loops of an index, each fed through a queue.
struct Loops {
    queues: Vec<flume::Sender<WorkerTask>>,
    threads: Vec<thread::JoinHandle<()>>,
    times: Vec<String>, // files that tell how long each thread has had a CPU, in nanoseconds
}

impl Loops {
    /// Loops that have yet to start; what is sent meanwhile waits in their queues.
    fn new(
        tree: &Arc<ConcurrentRadixTreeCompressed>,
        n: usize,
        bound: Option<usize>,
        prepare: impl FnOnce(&[flume::Sender<WorkerTask>]),
    ) -> Loops {
        let (mut queues, mut receivers) = (Vec::new(), Vec::new());
        for _ in 0..n {
            let (send, receive) = bound.map_or_else(flume::unbounded, flume::bounded);
            queues.push(send);
            receivers.push(receive);
        }
        prepare(&queues);
        let (mut threads, mut times) = (Vec::new(), Vec::new());
        for receive in receivers {
            let (tree, (tell, told)) = (tree.clone(), flume::bounded(1));
            threads.push(thread::spawn(move || {
                let id = std::fs::read_link("/proc/thread-self").expect("thread");
                tell.send(format!("/proc/{}/schedstat", id.display())).expect("told");
                tree.worker(receive, None).expect("event loop")
            }));
            times.push(told.recv().expect("thread"));
        }
        Loops { queues, threads, times }
    }

    fn end(self) {
        for queue in &self.queues {
            queue.send(WorkerTask::Terminate).expect("loop runs");
        }
        for thread in self.threads {
            thread.join().expect("event loop");
        }
    }
}

fn events(threads: usize) {
    let tree = Arc::new(ConcurrentRadixTreeCompressed::new());
    let mut marks: Vec<Vec<_>> = (0..threads).map(|_| Vec::new()).collect();
    let mut counts = vec![Vec::new(); threads];
    let loops = Loops::new(&tree, threads, None, |queues| {
        let mark = |t: usize, marks: &mut Vec<Vec<_>>| {
            let (send, receive) = tokio::sync::oneshot::channel();
            queues[t].send(WorkerTask::Flush(send)).expect("queue");
            marks[t].push(receive);
        };
        (0..threads).for_each(|t| mark(t, &mut marks));
        for name in PHASES {
            let mut count = vec![0usize; threads];
            phase(name, &mut |e| {
                let t = (e.worker_id as usize - 1) % threads;
                count[t] += 1;
                queues[t].send(WorkerTask::Event(e)).expect("queue");
            });
            for t in 0..threads {
                counts[t].push(count[t]);
                mark(t, &mut marks);
            }
        }
    });
    // A thread of its own waits for each loop's marks, so that one loop's time isn't taken late for another's.
    let watch = |(marks, file): (Vec<tokio::sync::oneshot::Receiver<()>>, String)| {
        let time = move |m: tokio::sync::oneshot::Receiver<()>| {
            m.blocking_recv().expect("mark");
            (Instant::now(), busy(&file))
        };
        thread::spawn(move || marks.into_iter().map(time).collect::<Vec<_>>())
    };
    let watchers: Vec<_> = marks.into_iter().zip(loops.times.clone()).map(watch).collect();
    let times: Vec<_> = watchers.into_iter().map(|w| w.join().expect("watcher")).collect();
    loops.end();
    for (p, name) in PHASES.iter().enumerate() {
        let (mut clock, mut cpu) = (0.0, 0.0);
        for t in 0..threads {
            let ((from, idle), (to, worked)) = (times[t][p], times[t][p + 1]);
            clock += counts[t][p] as f64 / (to - from).as_secs_f64();
            cpu += counts[t][p] as f64 / (worked - idle);
        }
        let row = format!("events threads={threads} {name}");
        print(&row, "events/s", clock);
        print(&row, "CPU events/s", cpu);
    }
}

/// Seconds that a thread has had a CPU, as its schedstat file tells.
fn busy(file: &str) -> f64 {
    let stat = std::fs::read_to_string(file).expect("schedstat");
    stat.split(' ').next().expect("time").parse::<f64>().expect("number") / 1e9
}

fn populated(pop: char) -> (Arc<ConcurrentRadixTreeCompressed>, Loops) {
    let tree = Arc::new(ConcurrentRadixTreeCompressed::new());
    let loops = Loops::new(&tree, 1, Some(256), |_| {});
    populate(pop, &mut |e| loops.queues[0].send(WorkerTask::Event(e)).expect("queue"));
    let (send, receive) = tokio::sync::oneshot::channel();
    loops.queues[0].send(WorkerTask::Flush(send)).expect("queue");
    receive.blocking_recv().expect("flush");
    (tree, loops)
}

fn lookup(tree: &Arc<ConcurrentRadixTreeCompressed>, pop: char, threads: usize, with: &str) {
    let depths: &[usize] = if pop == 'T' { &[0, 100, 103] } else { &[0, 100, 1024, 2048] };
    for &depth in depths {
        let queries = Arc::new(queries(pop, depth));
        let ask = |t: usize| {
            let (tree, queries) = (tree.clone(), queries.clone());
            thread::spawn(move || {
                let mut times = vec![1; 20_000]; // written, so that the system has given all pages
                times.clear();
                let from = Instant::now();
                for n in 0..22_000 {
                    let q = &queries[(n + t * 499) % queries.len()];
                    let start = Instant::now();
                    let scores = tree.find_matches(q, false);
                    let took = start.elapsed().as_nanos() as u64;
                    assert!(depth == 0 || scores.scores.values().any(|&s| s as usize >= depth), "depth {depth}");
                    if n >= 2000 {
                        times.push(took);
                    }
                }
                (times, 22_000.0 / from.elapsed().as_secs_f64())
            })
        };
        let asked: Vec<_> = (0..threads).map(ask).collect();
        let (mut times, mut rate) = (Vec::new(), 0.0);
        for thread in asked {
            let (t, r) = thread.join().expect("lookups");
            times.extend(t);
            rate += r;
        }
        times.sort_unstable();
        let row = format!("lookup pop={pop} threads={threads}{with} depth={depth}");
        print(&row, "p50 us", percentile(&times, 0.5));
        print(&row, "p99 us", percentile(&times, 0.99));
        print(&row, "p99.9 us", percentile(&times, 0.999));
        print(&row, "lookups/s", rate);
    }
}

/// Repeats the lookups while a block is appended to some sequence 20,000 times a second.
fn beside_writer(tree: &Arc<ConcurrentRadixTreeCompressed>, loops: &Loops) {
    const MOST: usize = 4000;
    let stop = Arc::new(AtomicBool::new(false));
    let (stopped, queue) = (stop.clone(), loops.queues[0].clone());
    let writer = thread::spawn(move || {
        let sequences = all('U', LENGTH + MOST);
        let mut at = vec![0; sequences.len()];
        let (from, mut written) = (Instant::now(), 0u64);
        for n in 0.. {
            if stopped.load(Ordering::Relaxed) {
                break;
            }
            let s = (mix(n) % SEQUENCES) as usize;
            if at[s] == MOST {
                continue;
            }
            let i = LENGTH + at[s];
            at[s] += 1;
            written += 1;
            let (l, name) = &sequences[s];
            queue.send(WorkerTask::Event(stored(holder(s), l, name, i, i + 1))).expect("queue");
            let due = Duration::from_secs_f64(written as f64 / 20_000.0);
            if let Some(ahead) = due.checked_sub(from.elapsed()).filter(|d| d.as_millis() >= 1) {
                thread::sleep(ahead);
            }
        }
    });
    thread::sleep(Duration::from_secs(1));
    lookup(tree, 'U', 1, "+writer20k");
    stop.store(true, Ordering::Relaxed);
    writer.join().expect("writer");
}

fn lookups(pop: char) {
    let (tree, loops) = populated(pop);
    lookup(&tree, pop, 1, "");
    lookup(&tree, pop, 2, "");
    if pop == 'U' {
        beside_writer(&tree, &loops);
    }
    loops.end();
}

fn resident() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("statm");
    statm.split(' ').nth(1).expect("resident").parse::<f64>().expect("number") * 4096.0
}

fn memory(pop: char) {
    let before = resident();
    let kept = populated(pop);
    let mut entries = 0.0;
    populate(pop, &mut |e| {
        if let KvCacheEventData::Stored(s) = e.event.data {
            entries += s.blocks.len() as f64;
        }
    });
    print(&format!("mem pop={pop}"), "RSS B/entry", (resident() - before) / entries);
    kept.1.end();
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let pop = || args[1].chars().next().expect("a population");
    match args.first().map(String::as_str) {
        Some("hash") => hashing(),
        Some("events") => events(args[1].parse().expect("threads")),
        Some("lookup") => lookups(pop()),
        Some("memory") => memory(pop()),
        _ => panic!("usage: hash | events THREADS | lookup POPULATION | memory POPULATION"),
    }
}
