//! The status reports of one connection: a full one, then what changed since, each checked by its
//! digest.

use muster_shared::wire::Intake;
use muster_shared::wire::status::{Reported, Status};
use serde::Deserialize as _;

use super::session::Session;

/// A report that says of no VM, or of a few, is not longer, bytes.
const MAX_SHORT_BYTES: usize = 4096;

/// The VMs as a connection's reports say.
#[derive(Debug, Default)]
pub(super) struct Reports {
    reported: Reported,
    /// A full report was asked for and has not come.
    asked: bool,
    /// As the registry knows it: every report tells it, and it seldom changes.
    intake: Option<Intake>,
}

impl Reports {
    /// Takes over a report, or asks for a full one where that can't be done.
    pub(super) fn take(&mut self, session: &Session, status: Status) {
        let Some(mut report) = status.report else { return };
        if !report.full && !self.reported.is_complete() {
            return self.ask_for_all(session);
        }
        session.incoming.share(session.server, &mut report.vms);
        if self.reported.apply(&report).is_err() {
            tracing::info!(
                parent: &session.span,
                full = report.full, "a status report does not match its digest"
            );
            return self.ask_for_all(session);
        }
        self.asked = false;
        if let Some(intake) = report.muster.get("intake")
            && let Ok(intake) = Intake::deserialize(intake)
            && self.intake.replace(intake) != Some(intake)
        {
            session.agents.registry.set_intake(session.server, intake);
        }
        session.incoming.status(session.server, report);
    }

    /// Once per loss: the answer is on its way.
    fn ask_for_all(&mut self, session: &Session) {
        if !std::mem::replace(&mut self.asked, true) {
            session.send(Box::new(Status { report: None }));
        }
    }
}

/// The report that a frame is, if it is a short one: most frames are, and to hand one to the worker
/// costs as much as to take it over. Any other frame, also one that is written another way, is the
/// worker's.
pub(super) fn short_report(text: &str) -> Option<Status> {
    if text.len() > MAX_SHORT_BYTES || !text.starts_with(r#"{"kind":"status""#) {
        return None;
    }
    Status::of_frame(text).ok()
}
