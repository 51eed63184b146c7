package chaos_test

import (
	"math/rand/v2"
	"syscall"
	"time"
)

// monkey breaks one thing after the other, and mends each before it breaks the next of its kind. It runs on one
// goroutine: two things are broken at a time only where the second is quick.
type monkey struct {
	d      *deployment
	random *rand.Rand
	counts map[string]int
}

// run breaks things until the time has come; everything is whole again when it returns.
func (m *monkey) run(end time.Time) {
	m.counts = map[string]int{}
	deeds := []struct {
		name   string
		weight int
		do     func()
	}{
		{"worker killed", 5, func() { m.worker(syscall.SIGKILL) }},
		{"worker ended", 3, func() { m.worker(syscall.SIGTERM) }},
		{"worker frozen", 2, m.freeze},
		{"NATS restarted", 2, m.nats},
		{"etcd restarted", 1, m.etcd},
		{"frontend killed", 1, func() { m.frontend(syscall.SIGKILL) }},
		{"frontend ended", 1, func() { m.frontend(syscall.SIGTERM) }},
	}
	all := 0
	for _, d := range deeds {
		all += d.weight
	}
	for time.Now().Before(end) {
		m.rest(100, 700)
		m.revive()
		at := m.random.IntN(all)
		for _, d := range deeds {
			if at -= d.weight; at < 0 {
				d.do()
				m.counts[d.name]++
				break
			}
		}
	}
	m.revive()
}

// revive replaces workers that have ended by themselves: Dynamo's do when an outage of etcd costs them their lease.
func (m *monkey) revive() {
	for i, p := range m.d.workers {
		select {
		case <-p.Done():
			m.d.startWorker(i)
			m.counts["worker gone"]++
		default:
		}
	}
}

// rest waits for some milliseconds.
func (m *monkey) rest(least, most int) {
	time.Sleep(time.Duration(least+m.random.IntN(most-least)) * time.Millisecond)
}

// worker ends one worker and starts another in its place.
func (m *monkey) worker(how syscall.Signal) {
	i := m.random.IntN(workers)
	p := m.d.workers[i]
	if how == syscall.SIGKILL {
		p.Kill()
	} else {
		p.Stop(10 * time.Second)
	}
	m.rest(100, 1000)
	m.d.startWorker(i)
}

// freeze lets a worker stand still for a while.
func (m *monkey) freeze() {
	p := m.d.workers[m.random.IntN(workers)]
	p.Signal(syscall.SIGSTOP)
	m.rest(200, 2500)
	p.Signal(syscall.SIGCONT)
}

// nats takes the NATS server away for a while, or a worker where there is none.
func (m *monkey) nats() {
	if m.d.NATS == nil {
		m.worker(syscall.SIGKILL)
		return
	}
	m.d.NATS.Stop()
	m.rest(100, 2000)
	if err := m.d.NATS.Start(); err != nil {
		m.d.t.Error(err)
	}
}

// etcd takes etcd away for less than a lease.
func (m *monkey) etcd() {
	m.d.Etcd.Stop()
	m.rest(100, 2500)
	if err := m.d.Etcd.Start(); err != nil {
		m.d.t.Error(err)
	}
}

// frontend ends one frontend and starts another in its place, at another address.
func (m *monkey) frontend(how syscall.Signal) {
	i := m.random.IntN(frontends)
	f := m.d.leaves(i)
	if n, err := m.d.series(f, moves); err == nil {
		m.d.moved += n
	}
	if how == syscall.SIGKILL {
		f.Kill()
	} else {
		f.Stop(15 * time.Second)
	}
	if err := m.d.startFrontend(i); err != nil {
		m.d.t.Error(err)
	}
}
