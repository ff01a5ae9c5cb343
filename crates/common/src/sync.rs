//! Locking that ignores poisoning: a panic ends one stream and not the process, so a lock that it poisoned must
//! stay usable.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
