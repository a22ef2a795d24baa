//! The control socket and `flownic ctl`.
