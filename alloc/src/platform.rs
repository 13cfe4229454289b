//! The comparison of platform limits, shared by two filters.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::change::Change;
use crate::reason::{Reason, Reasons};
use crate::remedy::Refused;
use crate::request::{Request, json_text};
use crate::run::{Run, Verdict};
use crate::server::Platform;
use crate::settings::Settings;

/// One limit: from or up to which platform.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    least: bool,
    who: &'static str,
    /// As printed.
    text: String,
    /// In text order, like all versions here.
    limits: BTreeMap<String, String>,
}

impl Limit {
    pub(crate) fn least(limits: Option<&Map<String, Value>>, who: &'static str) -> Option<Self> {
        Self::new(true, limits, who)
    }

    pub(crate) fn most(limits: Option<&Map<String, Value>>, who: &'static str) -> Option<Self> {
        Self::new(false, limits, who)
    }

    /// From the platform of version 7.0 on.
    pub(crate) fn from_stamp(stamp: &str, who: &'static str) -> Option<Self> {
        let limits: Map<_, _> = [("7.0".to_owned(), Value::from(stamp))].into_iter().collect();
        Self::least(Some(&limits), who)
    }

    fn new(least: bool, limits: Option<&Map<String, Value>>, who: &'static str) -> Option<Self> {
        let is_version = |key: &str| {
            key.split_once('.').is_some_and(|(a, b)| {
                let digits = |t: &str| !t.is_empty() && t.bytes().all(|c| c.is_ascii_digit());
                digits(a) && digits(b)
            })
        };
        let counted: Map<String, Value> = limits?
            .iter()
            .filter(|(key, _)| is_version(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let limits: BTreeMap<_, _> = counted
            .iter()
            .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
            .collect();
        (!limits.is_empty()).then(|| Self { least, who, text: json_text(&counted), limits })
    }

    /// Whether a platform is within the limit.
    fn allows(&self, platform: &Platform) -> bool {
        let (version, image) = (platform.sdc_version.as_str(), platform.live_image.as_str());
        let first = self.limits.keys().next().map_or("", String::as_str);
        let last = self.limits.keys().next_back().map_or("", String::as_str);
        let several = self.limits.len() > 1;
        let beyond = if self.least { version > last } else { version < first };
        let exact = self.limits.get(version);
        let within = exact.is_some_and(|limit| {
            if self.least { image >= limit.as_str() } else { image <= limit.as_str() }
        });
        let between = exact.is_none() && several && first < version && version < last;
        beyond || within || between
    }

    fn refusal(&self, platform: &Platform) -> String {
        let bound = if self.least { "min" } else { "max" };
        let has: Map<_, _> =
            [(platform.sdc_version.clone(), Value::from(platform.live_image.as_str()))]
                .into_iter()
                .collect();
        format!(
            "{} requires {bound} platforms {}, but server has {}",
            self.who,
            self.text,
            json_text(&has)
        )
    }
}

impl Platform {
    /// What limits are compared with, for an explanation.
    pub(crate) fn figures(&self) -> Vec<(&'static str, Value)> {
        vec![
            ("sdc_version", Value::from(self.sdc_version.as_str())),
            ("live_image", Value::from(self.live_image.as_str())),
        ]
    }
}

/// Keeps the servers within all limits; one that breaks several is told the first.
pub(crate) fn filter(run: &mut Run<'_>, limits: &[Limit]) -> Reasons {
    if limits.is_empty() {
        return Reasons::None;
    }
    let mut shared: Vec<String> = Vec::new();
    // One verdict per distinct platform: none yet, fits, or the number of the refusal's text.
    let mut verdicts: Vec<Option<Option<u32>>> = vec![None; run.snapshot.platforms.len()];
    let reasons = run.filter(|run, slot| {
        let class = run.snapshot.platform_class(slot) as usize;
        let verdict = *verdicts[class].get_or_insert_with(|| {
            let platform = run.snapshot.platforms[class].as_deref()?;
            let broken = limits.iter().find(|limit| !limit.allows(platform))?;
            shared.push(broken.refusal(platform));
            u32::try_from(shared.len() - 1).ok()
        });
        verdict.map_or(Verdict::Keep, |text| Verdict::Because(Reason::Shared(text)))
    });
    reasons.sharing(shared)
}

/// The server on a platform that is one of the limits.
pub(crate) fn remedies(refused: &Refused<'_>) -> Vec<Change> {
    let change = |stamp: String| {
        let text = format!("platform {stamp}");
        refused.set_sysinfo("Live Image", Value::from(stamp), &text)
    };
    stamps(refused.request, refused.settings).into_iter().map(change).collect()
}

/// Platforms that the request or its features name as limits, the oldest first.
fn stamps(request: &Request, settings: &Settings) -> Vec<String> {
    let package = request.package.as_ref().and_then(|package| package.min_platform.as_ref());
    let image = &request.image;
    let limits = [package, image.min_platform.as_ref(), image.max_platform.as_ref()];
    let limits = limits.into_iter().flatten().flat_map(|limits| limits.values());
    let platforms = &settings.platforms;
    let features = [
        &platforms.docker,
        &platforms.docker_volumes,
        &platforms.other_volumes,
        &platforms.volapi_nfs_v2,
        &platforms.flexible_disk,
    ];
    let mut stamps: Vec<String> = limits
        .filter_map(|stamp| stamp.as_str().map(str::to_owned))
        .chain(features.into_iter().flatten().cloned())
        .collect();
    stamps.sort();
    stamps.dedup();
    stamps
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(least: bool, limits: &Value, version: &str, image: &str, want: bool) {
        let limit = Limit::new(least, limits.as_object(), "Image");
        let platform = Platform { sdc_version: version.to_owned(), live_image: image.to_owned() };
        assert_eq!(limit.is_none_or(|limit| limit.allows(&platform)), want, "{version} {image}");
    }

    #[test]
    fn limits_compare_as_text() {
        let two = json!({"6.5": "20120101T000000Z", "7.0": "20130101T000000Z"});
        check(true, &two, "7.0", "20130101T000000Z", true);
        check(true, &two, "7.0", "20121231T000000Z", false);
        check(true, &two, "7.1", "20100101T000000Z", true);
        check(true, &two, "6.7", "20100101T000000Z", true);
        check(true, &two, "6.0", "20200101T000000Z", false);
        check(false, &two, "7.1", "20100101T000000Z", false);
        check(false, &two, "6.0", "20200101T000000Z", true);
        check(false, &two, "6.7", "20200101T000000Z", true);
        check(true, &json!({"7.0": "20130101T000000Z"}), "10.0", "20200101T000000Z", false);
        check(true, &json!({"smartos": "20130101T000000Z"}), "7.0", "2010", true);
    }
}
