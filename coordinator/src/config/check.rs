//! What is wrong with a configuration, apart from values of wrong types: all of it at once.

use muster_shared::config::{Check, Problems, Ways, check_exposure, check_url, check_urls};
use url::Url;

use super::{
    AgentsConfig, Api, BlobsConfig, BootConfig, Config, ImgapiConfig, MIN_IDLE_TIMEOUT_MS,
    RosterConfig, TasksConfig, Tls,
};
use crate::app::RegisteredPlatform;

impl Check for BootConfig {
    fn check(&self, problems: &mut Problems) {
        for text in &self.platforms {
            if let Err(problem) = text.parse::<RegisteredPlatform>() {
                problems.add("platforms", format!("{text:?}: {problem}"));
            }
        }
    }
}

impl Check for ImgapiConfig {
    fn check(&self, problems: &mut Problems) {
        let Some(text) = &self.url else { return };
        if let Err(problem) = check_url(text, ["http", "https"]) {
            problems.add("url", problem);
        }
    }
}

impl Check for Config {
    fn check(&self, problems: &mut Problems) {
        problems.require(!self.datacenter.is_empty(), "datacenter", "must not be empty");
        let tls = self.tls.identity().is_some();
        let open = &self.security.allow_plaintext;
        if let (false, Err(exposed)) = (tls, check_exposure(&self.listen, Ways::TlsOrUnix, open)) {
            problems.add("listen", exposed.to_string());
        }
        // Metrics have no TLS of their own.
        if let Some(Err(exposed)) =
            self.metrics.listen.as_ref().map(|listen| check_exposure(listen, Ways::Unix, open))
        {
            problems.add("metrics.listen", exposed.to_string());
        }
        problems.within("api", |problems| self.api.check(problems));
        problems.within("tls", |problems| self.tls.check(problems));
        problems.within("blobs", |problems| self.blobs.check(problems));
        problems.within("roster", |problems| self.roster.check(problems));
        problems.within("agents", |problems| self.agents.check(problems));
        problems.within("boot", |problems| self.boot.check(problems));
        problems.within("tasks", |problems| self.tasks.check(problems));
        problems.within("dapi", |problems| self.dapi.check(problems));
        problems.within("allocator", |problems| self.allocator.check(problems));
        problems.within("imgapi", |problems| self.imgapi.check(problems));
        problems.within("log", |problems| self.log.check(problems));
        let cache = (1..=65_536).contains(&self.store.cache_mib);
        problems.require(cache, "store.cache_mib", "must be from 1 to 65536");
    }
}

impl Check for Api {
    fn check(&self, problems: &mut Problems) {
        let status = matches!(self.validation_status, 409 | 500);
        problems.require(status, "validation_status", "must be 409 or 500");
        let connections = (1..=1_000_000).contains(&self.connections);
        problems.require(connections, "connections", "must be from 1 to 1000000");
        let of_peer = (1..=1_000_000).contains(&self.connections_per_peer);
        problems.require(of_peer, "connections_per_peer", "must be from 1 to 1000000");
        for name in &self.hosts {
            let fits = name == "*" || (url::Host::parse(name).is_ok() && !name.is_empty());
            problems.require(fits, "hosts", format!("{name:?} is not a host name"));
        }
        let head = (100..=600_000).contains(&self.head_timeout_ms);
        problems.require(head, "head_timeout_ms", "must be from 100 to 600000");
        problems.require(
            self.idle_timeout_ms >= MIN_IDLE_TIMEOUT_MS,
            "idle_timeout_ms",
            "must be at least 3600000, because clients keep connections for an hour",
        );
        problems.require(self.drain_ms <= 600_000, "drain_ms", "must be at most 600000");
    }
}

impl Check for Tls {
    fn check(&self, problems: &mut Problems) {
        let both = self.certificate.is_some() == self.key.is_some();
        problems.require(both, "key", "`tls.certificate` and `tls.key` go together");
        let tls = self.certificate.is_some();
        problems.require(
            tls || self.client_ca.is_none(),
            "client_ca",
            "needs `tls.certificate` and `tls.key`",
        );
        problems.require(
            self.client_ca.is_some() || !self.client_required,
            "client_required",
            "needs `tls.client_ca`",
        );
        for (key, path) in [("certificate", &self.certificate), ("client_ca", &self.client_ca)] {
            problems.readable(key, path.as_deref());
        }
        problems.secret("key", self.key.as_deref());
    }
}

impl Check for BlobsConfig {
    fn check(&self, problems: &mut Problems) {
        if let Some(url) = &self.url {
            let known = Url::parse(url).is_ok_and(|url| matches!(url.scheme(), "file" | "s3"));
            problems.require(known, "url", "must be `file:///FOLDER` or `s3://BUCKET/PREFIX`");
        }
    }
}

impl Check for RosterConfig {
    fn check(&self, problems: &mut Problems) {
        let suspect = self.suspect_ms >= 100;
        problems.require(
            suspect,
            "suspect_ms",
            "must be at least 100, or every pause looks like a dead server",
        );
        let order = self.lost_ms > self.suspect_ms;
        problems.require(order, "lost_ms", "must be more than `roster.suspect_ms`");
        problems.require(self.post_ms >= 1_000, "post_ms", "must be at least 1000");
    }
}

impl Check for AgentsConfig {
    fn check(&self, problems: &mut Problems) {
        check_urls(problems, "advertised_urls", &self.advertised_urls, ["ws", "wss"]);
        for (key, value) in [
            ("hello_timeout_ms", self.hello_timeout_ms),
            ("stream_timeout_ms", self.stream_timeout_ms),
        ] {
            problems.require((100..=600_000).contains(&value), key, "must be from 100 to 600000");
        }
    }
}

impl Check for TasksConfig {
    fn check(&self, problems: &mut Problems) {
        problems.require(
            self.accept_timeout_ms >= 1_000,
            "accept_timeout_ms",
            "must be at least 1000",
        );
        problems.require(
            (1..=100_000).contains(&self.max_open),
            "max_open",
            "must be from 1 to 100000",
        );
        let retention = (1..=3_650).contains(&self.retention_days);
        problems.require(retention, "retention_days", "must be from 1 to 3650");
        let count = (1_000..=100_000_000).contains(&self.retention_count);
        problems.require(count, "retention_count", "must be from 1000 to 100000000");
        let mib = (16..=1_048_576).contains(&self.retention_mib);
        problems.require(mib, "retention_mib", "must be from 16 to 1048576");
    }
}
