//! What a check found.

/// The result of one check.
pub(super) enum Finding {
    Good(String),
    /// The agent will run, but a person should look at this.
    Doubtful(String),
    Bad(String),
}
