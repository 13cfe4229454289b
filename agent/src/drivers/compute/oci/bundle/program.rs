//! What runs in a container: the image says it, and the VM's metadata may say otherwise.

use muster_shared::wire::Code;
use serde_json::Value;

use crate::drivers::DriverError;
use crate::drivers::images::RuntimeConfig;
use crate::vm_record::VmRecord;

/// Where an image that says nothing has its first program.
const INIT: &str = "/sbin/init";
/// Where programs are looked for in a container whose image does not say.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A container's first program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Program {
    pub(in super::super) argv: Vec<String>,
    pub(in super::super) env: Vec<String>,
    pub(in super::super) dir: String,
    pub(in super::super) user: Option<String>,
    pub(in super::super) terminal: bool,
}

impl Program {
    /// # Errors
    /// `InvalidParameters` that names the metadata which is of no use.
    pub(in super::super) fn of(vm: &VmRecord, image: &RuntimeConfig) -> Result<Self, DriverError> {
        let entrypoint = list(vm, "docker:entrypoint")?;
        let cmd = list(vm, "docker:cmd")?;
        // Arguments of the image are for the image's own program.
        let image_cmd = if entrypoint.is_some() { &[][..] } else { &image.cmd[..] };
        let mut argv = entrypoint.unwrap_or_else(|| image.entrypoint.clone());
        argv.extend(cmd.unwrap_or_else(|| image_cmd.to_vec()));
        if let Some(init) = vm.text("init_name") {
            argv = vec![init.to_owned()];
        }
        if argv.is_empty() {
            argv.push(INIT.to_owned());
        }
        let own = list(vm, "docker:env")?.unwrap_or_default();
        let dir = text(vm, "docker:workdir").or(image.working_dir.as_deref()).unwrap_or("/");
        let terminal = vm.internal_metadata("docker:tty");
        Ok(Self {
            argv,
            env: environment([vec![PATH.to_owned()], image.env.clone(), own].concat()),
            dir: if dir.starts_with('/') { dir.to_owned() } else { format!("/{dir}") },
            user: text(vm, "docker:user").or(image.user.as_deref()).map(str::to_owned),
            terminal: terminal.is_some_and(|tty| *tty == true || *tty == "true"),
        })
    }
}

/// Of several settings of one name the last one counts.
pub(in super::super) fn environment(settings: Vec<String>) -> Vec<String> {
    let name = |setting: &str| setting.split('=').next().unwrap_or_default().to_owned();
    let mut all: Vec<String> = Vec::new();
    for setting in settings {
        all.retain(|earlier| name(earlier) != name(&setting));
        all.push(setting);
    }
    all
}

fn text<'a>(vm: &'a VmRecord, key: &str) -> Option<&'a str> {
    vm.internal_metadata(key).and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// Metadata that is a list of texts, written as JSON.
fn list(vm: &VmRecord, key: &str) -> Result<Option<Vec<String>>, DriverError> {
    let Some(text) = text(vm, key) else { return Ok(None) };
    let parsed = serde_json::from_str::<Vec<String>>(text).ok();
    let usable = |list: &Vec<String>| !list.iter().any(|item| item.contains('\0'));
    parsed.filter(usable).map(Some).ok_or_else(|| {
        let text = format!("internal_metadata[{key:?}]: must be a list of texts, as JSON");
        DriverError::refused(Code::InvalidParameters, text)
    })
}
