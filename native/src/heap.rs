//! The native heap: which allocator it is, how much of it is in use, and giving memory back.
//!
//! Rust's allocations go to mimalloc. An encode with the reference tokenizer makes tens of thousands of small
//! allocations, on whichever thread the Go runtime happens to run the call; glibc's malloc takes about a quarter of its
//! time. C code in the library (the regular expression engine) keeps using the C library's malloc, so both count.
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};

use mimalloc::MiMalloc;

#[global_allocator]
static HEAP: Counted = Counted;

/// mimalloc, with the bytes in use counted: in its own figures, memory kept for later looks like memory in use.
struct Counted;

static IN_USE: AtomicIsize = AtomicIsize::new(0);

/// How far a thread's count may be off before it is added to the total. A thread that ends takes so much with it.
const SLACK: isize = 32 << 10;

thread_local! {
    // Made at compile time and without a destructor: an allocator must not allocate to get at it.
    static UNCOUNTED: Cell<isize> = const { Cell::new(0) };
}

#[inline]
fn count(bytes: isize) {
    // A thread on its way out may have lost its own count.
    let _ = UNCOUNTED.try_with(|own| {
        let sum = own.get() + bytes;
        if sum.abs() < SLACK {
            own.set(sum);
        } else {
            own.set(0);
            IN_USE.fetch_add(sum, Relaxed);
        }
    });
}

// Every call is passed on as it came, and what the caller has promised holds for mimalloc too.
unsafe impl GlobalAlloc for Counted {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let p = MiMalloc.alloc(layout);
        if !p.is_null() {
            count(layout.size() as isize);
        }
        p
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let p = MiMalloc.alloc_zeroed(layout);
        if !p.is_null() {
            count(layout.size() as isize);
        }
        p
    }

    #[inline]
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        MiMalloc.dealloc(p, layout);
        count(-(layout.size() as isize));
    }

    #[inline]
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let q = MiMalloc.realloc(p, layout, size);
        if !q.is_null() {
            count(size as isize - layout.size() as isize);
        }
        q
    }
}

/// Gives free pages back to the system. Loading a vocabulary leaves hundreds of megabytes of them, which an allocator
/// would otherwise keep for later.
#[no_mangle]
pub extern "C" fn portico_heap_trim() {
    unsafe { libmimalloc_sys::mi_collect(true) };
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Bytes in use: by Rust, to within SLACK for every thread, and by C code where the C library tells.
#[no_mangle]
pub extern "C" fn portico_heap_in_use() -> usize {
    IN_USE.load(Relaxed).max(0) as usize + c_heap_in_use()
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn c_heap_in_use() -> usize {
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn c_heap_in_use() -> usize {
    0
}
