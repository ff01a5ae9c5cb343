//! What the records of events tell: of agents, of hosts, and of the people who use the console.

use super::text_enum::text_enum;

text_enum! {
    pub enum EventKind {
        /// An agent registered, or a decision changed its status.
        Status = "status",
        Clone = "clone",
        MachineChanged = "machine changed",
        HostReturned = "host returned",
        KeyChangeAsked = "key change asked",
        KeyChanged = "key changed",
        /// Somebody used a key that was retired.
        RetiredKey = "retired key",
        /// An agent was told to move to another cell, or is expected from one.
        Cell = "cell",
        Deleted = "deleted",
        Presence = "presence",
        Note = "note",
        Labels = "labels",
        Retired = "retired",
        SignIn = "sign-in",
        SignOut = "sign-out",
        SessionsEnded = "sessions ended",
        LinkCreated = "link created",
        LinkUsed = "link used",
        PasswordSet = "password set",
        UserAdded = "user added",
        UserDisabled = "user disabled",
        UserEnabled = "user enabled",
        RoleChanged = "role changed",
        TokenCreated = "token created",
        TokenRevoked = "token revoked",
        ReleaseAdded = "release added",
        RolloutStarted = "rollout started",
        RolloutAdvanced = "rollout advanced",
        RolloutHalted = "rollout halted",
        RolloutPaused = "rollout paused",
        RolloutResumed = "rollout resumed",
        RolloutDone = "rollout done",
        HostSkipped = "host skipped",
        SettingsAdded = "settings added",
        SettingsChanged = "settings changed",
        SettingsRemoved = "settings removed",
        TrustAnchorAdded = "trust anchor added",
        TrustAnchorRetired = "trust anchor retired",
        Other = "other",
    }
    else Other
}
