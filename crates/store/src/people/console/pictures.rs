//! The pictures of the fleet, as the service counted them last (`service/fleet_pictures.rs`).

use crate::{prelude::*, service::fleet_pictures::FleetPictures};

record! {
    /// How many active agents were online in five minutes.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct PresencePoint {
        pub at: Timestamp,
        pub online: i32,
        pub offline: i32,
    }
}

impl Store {
    /// When the fleet was counted last, and what was found. `None` before the first time.
    pub async fn console_pictures(&self) -> Result<Option<(Timestamp, FleetPictures)>> {
        let sql = "-- console_pictures\nSELECT at, pictures FROM fleet_pictures";
        let rows = self.read("console_pictures", Ingest, sql, &[]).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let Json(pictures) = row.try_get("pictures")?;
        Ok(Some((row.try_get("at")?, pictures)))
    }

    /// The presence of the fleet since then, oldest first.
    pub async fn console_fleet_presence(&self, since: Timestamp) -> Result<Vec<PresencePoint>> {
        let sql = "-- console_fleet_presence
            SELECT at, online, offline FROM fleet_presence WHERE at >= $1 AND at <= now() ORDER BY at LIMIT 400";
        let params = params![since];
        self.read_all("console_fleet_presence", Ingest, sql, &params)
            .await
    }
}
