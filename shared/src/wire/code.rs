//! The error codes that travel between agent, coordinator and client.

use std::borrow::Cow;
use std::fmt;

use http::StatusCode;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! codes {
    ($($(#[$doc:meta])+ $name:ident = $text:literal,)+) => {
        /// Why something was refused or failed, for programs. On the wire it is its text.
        ///
        /// Peers may be older or newer: a code that this version does not know is kept as it came,
        /// in [`Code::Other`]. Made from text only by [`From`], so that no known code hides there.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Code {
            $($(#[$doc])+ $name,)+
            /// One that this version does not know.
            Other(String),
        }

        impl Code {
            /// As it is on the wire.
            #[must_use]
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$name => $text,)+
                    Self::Other(text) => text,
                }
            }

            fn known(text: &str) -> Option<Self> {
                match text {
                    $($text => Some(Self::$name),)+
                    _ => None,
                }
            }

            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$name,)+];
        }
    };
}

codes! {
    /// The server has been set up before.
    AlreadySetup = "AlreadySetup",
    /// The VM runs, so it can't be started.
    AlreadyRunning = "EALREADYRUNNING",
    /// The method is none of the path's (the agent's local API).
    BadMethod = "BadMethod",
    /// Stopped because somebody asked for that.
    Cancelled = "Cancelled",
    /// As many look at the console as may.
    ConsoleBusy = "ConsoleBusy",
    /// The guest's console does not answer.
    ConsoleUnavailable = "ConsoleUnavailable",
    /// The agent runs hardware VMs only.
    ContainerNotSupported = "ContainerNotSupported",
    /// The dataset is in use.
    DatasetBusy = "DatasetBusy",
    /// There is a dataset of this name.
    DatasetExists = "DatasetExists",
    /// The dataset has datasets below it.
    DatasetHasChildren = "DatasetHasChildren",
    /// Other datasets were made from it.
    DatasetHasClones = "DatasetHasClones",
    /// No such dataset.
    DatasetNotFound = "DatasetNotFound",
    /// The dataset is the system's own.
    DatasetProtected = "DatasetProtected",
    /// The platform can't copy out of a container that is stopped.
    DockerCopyStopped = "DockerCopyStoppedContainerNoPlatformSupport",
    /// The agent takes no new work: it is paused, drains or stops.
    Draining = "Draining",
    /// No such file in the container.
    FileNotFound = "FileNotFound",
    /// No guest agent runs in the guest, or it does not answer.
    GuestAgentMissing = "GuestAgentMissing",
    /// The guest did not do what it was asked to.
    GuestRefused = "GuestRefused",
    /// This agent may not change its host.
    HostActionsDisabled = "HostActionsDisabled",
    /// A program of the host that this needs is missing, or does not work.
    HostToolMissing = "HostToolMissing",
    /// Hardware VMs can't run on this host.
    HvmNotSupported = "HvmNotSupported",
    /// The image has its file already.
    ImageFilesImmutable = "ImageFilesImmutable",
    /// The image's file has another checksum than its manifest says.
    ImageChecksum = "ImageChecksum",
    /// Disks or other images were made from it.
    ImageHasDependentClones = "ImageHasDependentClones",
    /// The image's file is not what its manifest says.
    ImageInvalid = "ImageInvalid",
    /// The image may not be used.
    ImageNotActive = "ImageNotActive",
    /// No repository has the image.
    ImageNotFound = "ImageNotFound",
    /// The server does not have the image.
    ImageNotInstalled = "ImageNotInstalled",
    /// No repository gave the image.
    ImageUnavailable = "ImageUnavailable",
    /// The server was booted anew while it imported a VM: pieces may be lost.
    ImportInterrupted = "ImportInterrupted",
    /// There is an image of this uuid.
    ImageUuidAlreadyExists = "ImageUuidAlreadyExists",
    /// The host or the daemon failed; its log has the cause.
    InternalError = "InternalError",
    /// The agent went down while the task ran, and it can't go on.
    Interrupted = "Interrupted",
    /// What was asked for can't be.
    InvalidArgument = "InvalidArgument",
    /// The body can't be parsed.
    InvalidContent = "InvalidContent",
    /// A header that the request needs is absent or malformed.
    InvalidHeader = "InvalidHeader",
    /// The image's manifest can't be used.
    InvalidManifest = "InvalidManifest",
    /// No dataset can have this name.
    InvalidName = "InvalidName",
    /// Parameters failed validation.
    InvalidParameters = "InvalidParameters",
    /// No dataset can have this property.
    InvalidProperty = "InvalidProperty",
    /// No such signal.
    InvalidSignal = "InvalidSignal",
    /// The server's platform is too old for this.
    InvalidVersion = "InvalidVersion",
    /// Properties of a VM that can't be.
    InvalidVmPayload = "InvalidVmPayload",
    /// The agent's journal takes no more.
    JournalFull = "JournalFull",
    /// A frame that is not understood.
    Malformed = "Malformed",
    /// The new image would build on more others, one on another, than it may.
    MaxOriginDepth = "MaxOriginDepth",
    /// The path is known, but not with this method.
    MethodNotAllowed = "MethodNotAllowedError",
    /// A server has the NIC tag in use.
    NicTagInUse = "NicTagInUse",
    /// The image can't be activated without a file.
    NoActivationNoFile = "NoActivationNoFile",
    /// No server has room for the VM.
    NoAllocatableServers = "NoAllocatableServersError",
    /// The pool, or a quota, is full.
    NoSpace = "NoSpace",
    /// A test task failed as it was asked to.
    NopFailed = "NopFailed",
    /// No acceptable media type.
    NotAcceptable = "NotAcceptableError",
    /// No agent ever accepted the task.
    NotAccepted = "NotAccepted",
    /// The caller may not do this.
    NotAuthorized = "NotAuthorized",
    /// The task has ended, or its kind can't be cancelled.
    NotCancellable = "NotCancellable",
    /// The VM does not run, so it can't be stopped.
    NotRunning = "ENOTRUNNING",
    /// This agent has nothing to do it with.
    NotSupported = "NotSupported",
    /// The image of which the difference is wanted lacks what that is taken from.
    OriginHasNoFinalSnapshot = "OriginHasNoFinalSnapshot",
    /// The image of which the difference is wanted is not on the server.
    OriginNotInstalled = "OriginNotInstalled",
    /// There is a package of this name or uuid.
    PackageExists = "PackageExists",
    /// The path in the container is no directory.
    PathNotDirectory = "PathNotDirectory",
    /// The host's kernel does not let the agent do it.
    PermissionDenied = "PermissionDenied",
    /// There is a pool of this name, which was made by somebody else.
    PoolExists = "PoolExists",
    /// The pool is not there, or does not answer.
    PoolUnavailable = "PoolUnavailable",
    /// The request's condition does not hold.
    PreconditionFailed = "PreconditionFailed",
    /// The script by which a VM prepares itself for an image never said that it runs.
    PrepareImageDidNotRun = "PrepareImageDidNotRun",
    /// That script failed, did not end, or did not shut the VM down.
    PrepareImageError = "PrepareImageError",
    /// As many tasks wait as may.
    QueueFull = "QueueFull",
    /// The task waited too long for its turn.
    QueueTimeout = "QueueTimeout",
    /// The body, or a string in it, is over its limit.
    RequestEntityTooLarge = "RequestEntityTooLarge",
    /// What the path names does not exist.
    ResourceNotFound = "ResourceNotFound",
    /// The server was deleted while the task was open.
    ServerDeleted = "ServerDeleted",
    /// The server's status is not `running`.
    ServerNotRunning = "ServerNotRunning",
    /// Try again later.
    ServiceUnavailable = "ServiceUnavailable",
    /// There is a snapshot of this name.
    SnapshotExists = "SnapshotExists",
    /// The snapshot is held.
    SnapshotHeld = "SnapshotHeld",
    /// No such snapshot.
    SnapshotNotFound = "SnapshotNotFound",
    /// The request's ticket is older than one that was seen.
    StaleTicket = "StaleTicket",
    /// There is no space left for it.
    StoreFull = "StoreFull",
    /// The stream ended in order.
    StreamDone = "done",
    /// The stream failed.
    StreamFailed = "error",
    /// A task of this id with other parameters is known.
    TaskIdReused = "TaskIdReused",
    /// The agent no longer knows a task that it had accepted.
    TaskLost = "TaskLost",
    /// The request names a ticket that is not active.
    TicketNotActive = "TicketNotActive",
    /// It was not done in time.
    Timeout = "Timeout",
    /// The VM has as many snapshots as it may.
    TooManySnapshots = "TooManySnapshots",
    /// A message of a kind that this version does not know.
    UnknownKind = "UnknownKind",
    /// The task ended in a way that this version does not know.
    UnknownOutcome = "UnknownOutcome",
    /// The agent, or the coordinator's store, does not know the task.
    UnknownTask = "UnknownTask",
    /// The path is a websocket.
    UpgradeRequired = "UpgradeRequired",
    /// An image could not be published.
    UploadError = "UploadError",
    /// There is a VM of this uuid.
    VmExists = "VmExists",
    /// The VM was made from no image, so that there is nothing to take the difference from.
    VmHasNoOrigin = "VmHasNoOrigin",
    /// The VM is protected from destruction.
    VmIndestructible = "VmIndestructible",
    /// No such VM.
    VmNotFound = "VmNotFound",
    /// The VM does not run.
    VmNotRunning = "VmNotRunning",
    /// The VM runs, and must not for this.
    VmNotStopped = "VmNotStopped",
    /// The VM is being made or destroyed, or its creation failed.
    VmNotUsable = "VmNotUsable",
    /// The VM's process lives.
    VmRunning = "VmRunning",
    /// The server has VMs.
    VmsPresent = "VmsPresent",
    /// The server of a mounted volume has no room.
    VolumeServerNoResources = "VolumeServerNoResourcesError",
    /// The server has no ZFS.
    ZfsUnavailable = "ZfsUnavailable",
}

impl Code {
    /// The HTTP status of a request that an agent refused or failed with this code. What is not
    /// listed is a failure of the host.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::VmNotFound
            | Self::DatasetNotFound
            | Self::SnapshotNotFound
            | Self::OriginNotInstalled
            | Self::ImageNotInstalled => StatusCode::NOT_FOUND,
            Self::VmNotRunning
            | Self::VmExists
            | Self::VmHasNoOrigin
            | Self::VmIndestructible
            | Self::StaleTicket
            | Self::DatasetExists
            | Self::DatasetBusy
            | Self::DatasetHasChildren
            | Self::DatasetHasClones
            | Self::DatasetProtected
            | Self::PoolExists
            | Self::ImageHasDependentClones
            | Self::ImportInterrupted
            | Self::GuestAgentMissing
            | Self::GuestRefused
            | Self::MaxOriginDepth
            | Self::OriginHasNoFinalSnapshot
            | Self::PrepareImageDidNotRun
            | Self::PrepareImageError
            | Self::SnapshotHeld
            | Self::InvalidName
            | Self::InvalidProperty
            | Self::InvalidParameters
            | Self::InvalidVmPayload
            | Self::InvalidArgument
            | Self::ConsoleBusy => StatusCode::CONFLICT,
            Self::HostActionsDisabled | Self::NotAuthorized => StatusCode::FORBIDDEN,
            Self::NotSupported | Self::HostToolMissing | Self::ZfsUnavailable => {
                StatusCode::NOT_IMPLEMENTED
            }
            Self::QueueFull | Self::Draining | Self::JournalFull | Self::ConsoleUnavailable => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Whether a VM that is being placed may go to another server instead: nothing was made, and
    /// the reason is this server's.
    #[must_use]
    pub fn try_elsewhere(&self) -> bool {
        matches!(
            self,
            Self::Draining
                | Self::QueueFull
                | Self::QueueTimeout
                | Self::JournalFull
                | Self::StoreFull
                | Self::NoSpace
                | Self::PoolUnavailable
                | Self::ZfsUnavailable
                | Self::HvmNotSupported
                | Self::ContainerNotSupported
                | Self::HostToolMissing
                | Self::NotSupported
                | Self::NotAccepted
        )
    }

    /// The code in the text of an agent of another make, which has no other place for it: Node.js
    /// begins with it (`ENOENT, stat '/x'`).
    #[must_use]
    pub fn in_text(message: &str) -> Option<Self> {
        match message.split_once(',')?.0 {
            "ENOENT" => Some(Self::FileNotFound),
            _ => None,
        }
    }
}

impl From<&str> for Code {
    fn from(text: &str) -> Self {
        Self::known(text).unwrap_or_else(|| Self::Other(text.to_owned()))
    }
}

impl From<String> for Code {
    fn from(text: String) -> Self {
        Self::known(&text).unwrap_or(Self::Other(text))
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl PartialEq<str> for Code {
    fn eq(&self, text: &str) -> bool {
        self.as_str() == text
    }
}

impl PartialEq<&str> for Code {
    fn eq(&self, text: &&str) -> bool {
        self.as_str() == *text
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        Ok(text.into_owned().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_their_text_on_the_wire_and_unknown_ones_are_kept() {
        for code in Code::ALL {
            let text = serde_json::to_string(code).unwrap();
            assert_eq!(text, format!("\"{code}\""));
            assert_eq!(serde_json::from_str::<Code>(&text).unwrap(), *code);
        }
        let strange: Code = serde_json::from_str(r#""FromTheFuture\n""#).unwrap();
        assert_eq!(strange, Code::Other("FromTheFuture\n".to_owned()));
        assert_eq!(serde_json::to_string(&strange).unwrap(), r#""FromTheFuture\n""#);
    }

    #[test]
    fn what_is_not_known_is_a_failure_of_the_host_and_stays_where_it_is() {
        for code in [Code::from(""), Code::from("Boom"), Code::InternalError] {
            assert_eq!(code.status(), StatusCode::INTERNAL_SERVER_ERROR, "{code}");
            assert!(!code.try_elsewhere(), "{code}");
        }
    }

    #[test]
    fn errno_is_read_only_from_the_beginning_of_the_text() {
        assert_eq!(Code::in_text("ENOENT, stat '/x'"), Some(Code::FileNotFound));
        for text in ["", "ENOENT", "stat: ENOENT, /x", "EACCES, open '/x'"] {
            assert_eq!(Code::in_text(text), None, "{text}");
        }
    }
}
