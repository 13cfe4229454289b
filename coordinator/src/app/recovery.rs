//! Conditions of tasks that need a certain agent or a certain server: versions of `cn-agent`, and
//! the recovery configuration of an encrypted pool.

use muster_shared::api::server::{PoolRecovery, Sysinfo};
use muster_shared::ids::ServerUuid;
use serde_json::Value;
use uuid::Uuid;

use super::error::AppError;
use super::fleet::Fleet;

/// Since this version `cn-agent` knows recovery configurations.
const RECOVERY_SINCE: Version = (2, 13, 0);

// In CNAPI's words.
const MISSING: &str = "\"recovery_uuid\", \"pivtoken\" and \"action\" params must be provided";
const BAD_ACTION: &str = "Invalid \"action\" param. It must be one of \"stage\" or \"activate\"";
const MISSING_TO_STAGE: &str =
    "\"template\" and \"token\" params must be provided for recovery configuration \"stage\"";
const NOT_ENCRYPTED: &str =
    "Recovery Configuration can be set only for servers with encrypted zpools";
const NOT_STAGED: &str = "Only the staged Recovery configuration can be activated";

/// Major, minor, patch.
pub(super) type Version = (u64, u64, u64);

/// What a request for a recovery configuration says; empty texts count as absent.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecoveryRequest<'a> {
    /// `stage` or `activate`.
    pub action: Option<&'a str>,
    /// The configuration.
    pub recovery_uuid: Option<&'a str>,
    /// GUID of the server's token.
    pub pivtoken: Option<&'a str>,
    /// Needed by `stage`.
    pub template: Option<&'a str>,
    /// Needed by `stage`.
    pub token: Option<&'a str>,
}

impl Fleet {
    /// What the sysinfo of a server says; nothing when there is none.
    #[must_use]
    pub fn sysinfo_of(&self, server: ServerUuid) -> Sysinfo {
        let document = self.with(server, |entry| entry.sysinfo()).unwrap_or_default();
        document.read().unwrap_or_default()
    }

    /// Refuses what needs a newer `cn-agent` than the server has.
    ///
    /// # Errors
    /// [`AppError::Precondition`], in CNAPI's words.
    pub fn require_cn_agent(
        &self,
        server: ServerUuid,
        feature: &str,
        least: Version,
    ) -> Result<(), AppError> {
        let Some(installed) = self.outdated_cn_agent(server, least) else { return Ok(()) };
        let (major, minor, patch) = least;
        Err(AppError::Precondition(format!(
            "cn-agent (v{installed}) on server {server} does not support \"{feature}\": require at \
             least cn-agent v{major}.{minor}.{patch}"
        )))
    }

    /// The version of a server's `cn-agent`, as it was registered.
    pub(super) fn cn_agent(&self, server: ServerUuid) -> Option<String> {
        let agents = self.with(server, |entry| {
            entry.record.as_ref().and_then(|record| record.value.agents.clone())
        });
        cn_agent_version(&agents.flatten().unwrap_or_default())
    }

    /// The version of a server's `cn-agent` if it is older than `least`, or `unknown`.
    pub fn outdated_cn_agent(&self, server: ServerUuid, least: Version) -> Option<String> {
        let installed = self.cn_agent(server);
        match installed.as_deref().and_then(parse) {
            Some(version) if version >= least => None,
            _ => Some(installed.unwrap_or_else(|| "unknown".to_owned())),
        }
    }

    /// Checks everything that the reference checks before it starts `recovery_config`, in its
    /// order.
    ///
    /// # Errors
    /// [`AppError::Precondition`].
    pub fn recovery_check(
        &self,
        server: ServerUuid,
        request: &RecoveryRequest<'_>,
    ) -> Result<(), AppError> {
        check_request(request)?;
        self.require_cn_agent(server, "recovery_config", RECOVERY_SINCE)?;
        check_pool(&self.sysinfo_of(server), request)
    }
}

fn refuse<T>(text: impl Into<String>) -> Result<T, AppError> {
    Err(AppError::Precondition(text.into()))
}

fn check_request(request: &RecoveryRequest<'_>) -> Result<(), AppError> {
    if [request.action, request.recovery_uuid, request.pivtoken].contains(&None) {
        return refuse(MISSING);
    }
    match request.action {
        Some("activate") => Ok(()),
        Some("stage") if [request.template, request.token].contains(&None) => {
            refuse(MISSING_TO_STAGE)
        }
        Some("stage") => Ok(()),
        _ => refuse(BAD_ACTION),
    }
}

fn check_pool(sysinfo: &Sysinfo, request: &RecoveryRequest<'_>) -> Result<(), AppError> {
    if sysinfo.pool_encrypted != Some(true) {
        return refuse(NOT_ENCRYPTED);
    }
    // What is active may be staged again.
    if request.action != Some("activate") {
        return Ok(());
    }
    let wanted = request.recovery_uuid.and_then(|text| text.parse::<Uuid>().ok());
    let known = |which: fn(&PoolRecovery) -> &Option<String>| {
        sysinfo.pool_recovery.as_ref().and_then(|recovery| folded(which(recovery).as_deref()?))
    };
    let named = request.recovery_uuid.unwrap_or_default();
    if wanted.is_some() && known(|recovery| &recovery.active) == wanted {
        return refuse(format!("Recovery configuration {named} is already active"));
    }
    if wanted.is_none() || known(|recovery| &recovery.staged) != wanted {
        return refuse(NOT_STAGED);
    }
    Ok(())
}

/// The UUID that a configuration's hash stands for: its first 16 bytes with the marks of a
/// version 5 UUID.
fn folded(hash: &str) -> Option<Uuid> {
    let bytes = hex::decode(hash).ok()?;
    let mut bytes: [u8; 16] = bytes.get(..16)?.try_into().ok()?;
    bytes[8] = bytes[8] & 0x3f | 0xa0;
    bytes[6] = bytes[6] & 0x0f | 0x50;
    Some(Uuid::from_bytes(bytes))
}

fn cn_agent_version(agents: &[Value]) -> Option<String> {
    let agent = agents.iter().find(|agent| agent["name"] == "cn-agent")?;
    agent["version"].as_str().map(str::to_owned)
}

/// The three numbers of a semantic version; what follows them does not count.
fn parse(version: &str) -> Option<Version> {
    let release = version.trim_start_matches('v').split(['-', '+']).next()?;
    let mut numbers = release.split('.').map(|part| part.parse::<u64>().ok());
    let mut next = || numbers.next().flatten();
    Some((next()?, next()?, next()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const HASH: &str = "00112233445566778899aabbccddeeff0011223344";
    const FOLDED: &str = "00112233-4455-5677-a899-aabbccddeeff";

    #[track_caller]
    fn check(sysinfo: &Value, action: &str, uuid: &str, expected: Option<&str>) {
        let request = RecoveryRequest {
            action: Some(action),
            recovery_uuid: Some(uuid),
            pivtoken: Some("aa"),
            ..RecoveryRequest::default()
        };
        let sysinfo = serde_json::from_value(sysinfo.clone()).unwrap();
        let text = check_pool(&sysinfo, &request).map_err(|error| error.to_string());
        assert_eq!(text.err().as_deref(), expected, "{action} {uuid}");
    }

    #[test]
    fn a_pool_allows_what_is_staged_and_nothing_twice() {
        let staged = json!({ "Zpool Encrypted": true, "Zpool Recovery": { "staged": HASH } });
        let active = json!({ "Zpool Encrypted": true, "Zpool Recovery": { "active": HASH } });
        let plain = json!({ "Zpool Encrypted": false });
        let not_encrypted =
            "Recovery Configuration can be set only for servers with encrypted zpools";
        let not_staged = Some("Only the staged Recovery configuration can be activated");
        check(&plain, "stage", FOLDED, Some(not_encrypted));
        check(&staged, "activate", FOLDED, None);
        check(&staged, "stage", FOLDED, None);
        check(&staged, "activate", "00000000-0000-5000-a000-000000000000", not_staged);
        check(&active, "stage", FOLDED, None);
        let twice = "Recovery configuration 00112233-4455-5677-a899-aabbccddeeff is already active";
        check(&active, "activate", FOLDED, Some(twice));
        check(&json!({ "Zpool Encrypted": true }), "activate", "no uuid", not_staged);
    }

    #[test]
    fn requests_are_checked_in_order() {
        let text = |request| check_request(&request).unwrap_err().to_string();
        let mut request = RecoveryRequest { action: Some("x"), ..RecoveryRequest::default() };
        assert_eq!(
            text(request),
            r#""recovery_uuid", "pivtoken" and "action" params must be provided"#
        );
        request.recovery_uuid = Some("u");
        request.pivtoken = Some("p");
        assert_eq!(
            text(request),
            r#"Invalid "action" param. It must be one of "stage" or "activate""#
        );
        request.action = Some("stage");
        assert_eq!(
            text(request),
            r#""template" and "token" params must be provided for recovery configuration "stage""#
        );
        request.action = Some("activate");
        check_request(&request).unwrap();
    }

    #[test]
    fn versions_compare_by_their_numbers() {
        let agents =
            [json!({ "name": "x" }), json!({ "name": "cn-agent", "version": "2.14.0-rc1" })];
        let version = cn_agent_version(&agents).unwrap();
        assert_eq!(parse(&version), Some((2, 14, 0)));
        assert!(parse("2.9.1") < parse("2.13.0"));
        assert_eq!(parse("2.x"), None);
        assert_eq!(cn_agent_version(&[]), None);
    }
}
