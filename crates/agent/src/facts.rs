//! What this machine is recognised by.
