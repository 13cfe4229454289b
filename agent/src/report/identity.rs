//! Which server this is: the UUID under which everything about it is stored for ever.
//!
//! The first source that has one wins: configuration, `override_uuid=` on the kernel command
//! line, the value persisted at an earlier start, the machine's firmware, the machine id. The
//! winner is persisted, so that a new mainboard doesn't make it another server.

use std::path::Path;

use muster_shared::ids::ServerUuid;
use uuid::Uuid;

use crate::drivers::{DriverError, files};

/// File under the data folder that holds the UUID.
pub const FILE_NAME: &str = "server_uuid";
/// Name space of UUIDs made from a machine id.
const MACHINE_ID_NAMESPACE: Uuid = Uuid::from_u128(0x8f2c_91a4_5b1e_4c0d_9a37_6d0f_1be2_c455);

/// UUIDs that vendors ship on more than one machine.
const DUMMIES: &[Uuid] = &[
    Uuid::nil(),
    Uuid::max(),
    Uuid::from_u128(0x0300_0200_0400_0500_0006_0007_0008_0009),
    Uuid::from_u128(0x0002_0003_0004_0005_0006_0007_0008_0009),
    Uuid::from_u128(0xfefe_fefe_fefe_fefe_fefe_fefe_fefe_fefe),
    Uuid::from_u128(0x1234_5678_1234_5678_90ab_cdde_efaa_bbcc),
    Uuid::from_u128(0xffff_ffff_ffff_ffff_ffff_ffff_ffff_fff0),
];

/// How the firmware's UUID is spelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ByteOrder {
    /// As Linux prints it.
    #[default]
    Linux,
    /// As SmartOS prints it: the first three fields with their bytes swapped. For fleets whose
    /// records were made under SmartOS.
    Smartos,
}

/// What may name the server.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// From the configuration.
    pub configured: Option<ServerUuid>,
    /// How to spell the firmware's.
    pub byte_order: ByteOrder,
}

/// Finds the server's UUID and persists it under `data_dir`. `root` is `/` except in tests.
///
/// # Errors
/// The persisted value could not be read or written, or there is no source at all.
pub async fn determine(
    sources: &Sources,
    data_dir: &Path,
    root: &Path,
) -> Result<ServerUuid, DriverError> {
    let path = data_dir.join(FILE_NAME);
    let persisted = match files::read(&path).await? {
        Some(content) => Some(parse_persisted(&path, &content)?),
        None => None,
    };
    let text = async |name: &str| {
        let content = tokio::fs::read_to_string(root.join(name)).await;
        content.ok().map(|text| text.trim().to_owned()).unwrap_or_default()
    };
    let chosen = sources
        .configured
        .map(|uuid| uuid.0)
        .or(from_command_line(&text("proc/cmdline").await))
        .or(persisted)
        .or(from_firmware(&text("sys/class/dmi/id/product_uuid").await, sources.byte_order))
        .or(from_machine_id(&text("etc/machine-id").await));
    let Some(chosen) = chosen else {
        return Err(DriverError::failed(
            "find out which server this is",
            "neither firmware nor /etc/machine-id names it; set server_uuid",
        ));
    };
    if persisted != Some(chosen) {
        if let Some(before) = persisted {
            tracing::warn!(%before, server_uuid = %chosen, "the server's UUID was changed");
        }
        keep(chosen.into(), data_dir).await?;
    }
    Ok(chosen.into())
}

/// Writes the server's UUID down in a folder.
///
/// # Errors
/// The file system failed.
pub async fn keep(server_uuid: ServerUuid, folder: &Path) -> Result<(), DriverError> {
    files::make_folder(folder).await?;
    let (path, text) = (folder.join(FILE_NAME), format!("{server_uuid}\n"));
    if files::read(&path).await?.as_deref() == Some(text.as_bytes()) {
        return Ok(());
    }
    files::write(&path, text.as_bytes()).await
}

fn parse_persisted(path: &Path, content: &[u8]) -> Result<Uuid, DriverError> {
    let text = String::from_utf8_lossy(content);
    text.trim().parse().map_err(|e: uuid::Error| {
        // Going on would make this another server.
        DriverError::failed(format!("read the server's UUID in {}", path.display()), e)
    })
}

/// Whether vendors ship this UUID on more than one machine.
#[must_use]
pub fn is_dummy(uuid: Uuid) -> bool {
    DUMMIES.contains(&uuid)
}

fn usable(uuid: Uuid) -> Option<Uuid> {
    (!is_dummy(uuid)).then_some(uuid)
}

fn from_command_line(cmdline: &str) -> Option<Uuid> {
    let value = cmdline.split_whitespace().find_map(|word| word.strip_prefix("override_uuid="))?;
    value.parse().ok().and_then(usable)
}

fn from_firmware(text: &str, order: ByteOrder) -> Option<Uuid> {
    let uuid = usable(text.parse().ok()?)?;
    match order {
        ByteOrder::Linux => Some(uuid),
        ByteOrder::Smartos => usable(Uuid::from_bytes_le(uuid.into_bytes())),
    }
}

fn from_machine_id(text: &str) -> Option<Uuid> {
    let id: Uuid = text.parse().ok().and_then(usable)?;
    // machine-id(5) asks not to show the id itself to others.
    Some(Uuid::new_v5(&MACHINE_ID_NAMESPACE, id.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRMWARE: &str = "44454C4C-4400-1054-8052-B5C04F4E3432";

    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new(firmware: &str, machine_id: &str, cmdline: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            for (name, content) in [
                ("sys/class/dmi/id/product_uuid", firmware),
                ("etc/machine-id", machine_id),
                ("proc/cmdline", cmdline),
            ] {
                let path = folder.path().join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, content).unwrap();
            }
            Self(folder)
        }

        async fn uuid(&self, sources: &Sources) -> String {
            let data = self.0.path().join("data");
            determine(sources, &data, self.0.path()).await.unwrap().to_string()
        }
    }

    #[tokio::test]
    async fn the_firmwares_uuid_is_taken_and_kept() {
        let machine = Machine::new(FIRMWARE, "", "quiet");
        let sources = Sources::default();
        assert_eq!(machine.uuid(&sources).await, FIRMWARE.to_lowercase());
        // A new mainboard.
        let path = machine.0.path().join("sys/class/dmi/id/product_uuid");
        std::fs::write(path, "11111111-2222-3333-8444-555555555555").unwrap();
        assert_eq!(machine.uuid(&sources).await, FIRMWARE.to_lowercase());
    }

    #[tokio::test]
    async fn configuration_and_command_line_come_first() {
        let cmdline = "quiet override_uuid=22222222-2222-4222-8222-222222222222 x=y";
        let machine = Machine::new(FIRMWARE, "", cmdline);
        let found = machine.uuid(&Sources::default()).await;
        assert_eq!(found, "22222222-2222-4222-8222-222222222222");
        let wanted = "33333333-3333-4333-8333-333333333333";
        let sources = Sources { configured: wanted.parse().ok(), ..Sources::default() };
        assert_eq!(machine.uuid(&sources).await, wanted);
    }

    #[tokio::test]
    async fn dummies_are_passed_over() {
        let id = "0123456789abcdef0123456789abcdef";
        let mut seen = Vec::new();
        for dummy in [
            "00000000-0000-0000-0000-000000000000",
            "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
            "03000200-0400-0500-0006-000700080009",
            "fefefefe-fefe-fefe-fefe-fefefefefefe",
            "Not Settable",
        ] {
            seen.push(Machine::new(dummy, id, "").uuid(&Sources::default()).await);
        }
        seen.dedup();
        assert_eq!(seen.len(), 1, "all come from the machine id: {seen:?}");
        assert_eq!(seen[0].as_bytes()[14], b'5');
        let nothing = Machine::new("", "", "");
        let data = nothing.0.path().join("data");
        determine(&Sources::default(), &data, nothing.0.path()).await.unwrap_err();
    }

    #[tokio::test]
    async fn the_byte_order_of_smartos_swaps_three_fields() {
        let sources = Sources { byte_order: ByteOrder::Smartos, ..Sources::default() };
        let machine = Machine::new(FIRMWARE, "", "");
        assert_eq!(machine.uuid(&sources).await, "4c4c4544-0044-5410-8052-b5c04f4e3432");
    }

    #[tokio::test]
    async fn a_damaged_file_stops_the_start() {
        let machine = Machine::new(FIRMWARE, "", "");
        let data = machine.0.path().join("data");
        std::fs::create_dir_all(&data).unwrap();
        std::fs::write(data.join(FILE_NAME), "garbage").unwrap();
        determine(&Sources::default(), &data, machine.0.path()).await.unwrap_err();
    }
}
