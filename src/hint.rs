//! What may be said to the processor and to the kernel that changes nothing but speed.
#![allow(unsafe_code)]

/// Asks the processor for a cache line that will be read soon.
#[inline(always)]
pub(crate) fn prefetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing and faults on nothing, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// Asks the processor for a cache line that will be written soon: for ownership at once, where [`prefetch`] would fetch
/// a copy first and pay for the trip to the other core twice.
#[inline(always)]
pub(crate) fn prefetch_for_write<T>(p: *mut T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as for prefetch(). Processors without the instruction take it for a no-op.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) p, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// Asks the kernel for large pages where this memory is used, if it is large itself: who reads it here and there
/// otherwise waits for the processor to find out where each page is, longer than for the cache line.
pub(crate) fn huge_pages<T>(p: *const T, count: usize) {
    /// The smallest of them.
    const HUGE: usize = 2 << 20;
    let (start, end) = (p.addr().next_multiple_of(HUGE), p.addr() + count * size_of::<T>());
    if let Some(len @ HUGE..) = (end / HUGE * HUGE).checked_sub(start) {
        // SAFETY: this changes the size of pages, never what is in them. Wherever it may not be, or is not known, the
        // kernel refuses, and pages stay small.
        unsafe { libc::madvise(p.with_addr(start).cast_mut().cast(), len, libc::MADV_HUGEPAGE) };
    }
}
