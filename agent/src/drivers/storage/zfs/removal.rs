//! Volumes and roots that go, even while something has them open.

use muster_shared::error_chain::Chain;
use muster_shared::wire::Code;

use super::ZfsStorage;
use crate::drivers::DriverError;

impl ZfsStorage {
    /// Destroys a volume or root with its snapshots; none is no error. One that stays open gets out of the way,
    /// and goes later.
    pub(super) async fn remove(&self, volume: &str) -> Result<(), DriverError> {
        // Who fills it has it open.
        self.filling.lock().remove(volume);
        match self.pool.remove(volume).await {
            Err(DriverError::Refused { code: Code::DatasetBusy, .. }) => self.defer(volume).await,
            done => done,
        }
    }

    /// Nothing finds it by its name any more.
    async fn defer(&self, volume: &str) -> Result<(), DriverError> {
        let Some(row) = self.pool.row(volume).await? else { return Ok(()) };
        self.home.ready(&self.pool, &self.owner).await?;
        let going = self.names.going();
        let mut properties = self.owner.stamp();
        properties.insert("canmount".to_owned(), "off".to_owned());
        match self.pool.create_filesystem(&going, properties).await {
            Err(DriverError::Refused { code: Code::DatasetExists, .. }) => {}
            made => made?,
        }
        let guid = row.text("guid").unwrap_or("0");
        let to = format!("{going}/{guid}");
        tracing::warn!(volume, to, "a volume is in use, and is destroyed later");
        self.pool.rename(volume, &to).await
    }

    /// Destroys what could not go before; what still can't stays for the next start.
    pub(super) async fn sweep(&self) {
        let going = self.names.going();
        let rows = match self.pool.rows(&going).await {
            Ok(rows) => rows,
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "what was destroyed before can't be read");
                return;
            }
        };
        for row in rows.iter().filter(|row| !row.is_snapshot() && row.name != going) {
            if let Err(error) = self.pool.remove(&row.name).await {
                let error = Chain(&error).to_string();
                tracing::warn!(volume = row.name, error, "a destroyed volume is still in use");
            }
        }
    }
}
