//! Samples on disk, from the moment they were taken until the service has them.
