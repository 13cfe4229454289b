//! `muster completion`: scripts for shells.

use clap::{CommandFactory as _, ValueEnum};
use clap_complete::Shell;

use crate::CliError;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Completes commands and options; in bash, zsh and fish also names and ids of VMs, servers, images and
so on, which come from the coordinator. Examples:
  muster completion bash > /etc/bash_completion.d/muster
  muster completion zsh > /usr/local/share/zsh/site-functions/_muster
  muster completion fish > ~/.config/fish/completions/muster.fish")]
pub(crate) struct Args {
    /// The shell.
    shell: Which,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Which {
    Bash,
    Zsh,
    Fish,
    Elvish,
    Powershell,
}

/// Names first; where there are none, what the script before it says.
const BASH: &str = r#"
_muster_names() {
    local names
    names="$(muster names -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)"
    if [ -n "$names" ]; then
        local IFS=$'\n'
        COMPREPLY=($names)
    else
        _muster "$@"
    fi
}
complete -F _muster_names -o nosort -o bashdefault -o default muster 2>/dev/null ||
    complete -F _muster_names -o bashdefault -o default muster
"#;

const ZSH: &str = r#"
_muster_names() {
    local -a names
    names=("${(@f)$(muster names -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${names[1]}" ]]; then
        compadd -a names
    else
        _muster "$@"
    fi
}
compdef _muster_names muster
# Where a folder of functions has it, it is read when it is needed first, and has to answer.
if [ "$funcstack[1]" = "_muster" ]; then
    _muster_names "$@"
fi
"#;

/// What the script before it does at its end, without names.
const ZSH_END: &str = "\nif [ \"$funcstack[1]\" = \"_muster\" ]";

const FISH: &str = r"
function __muster_names
    set -l words (commandline --tokens-expanded --cut-at-cursor 2>/dev/null; or commandline -opc)
    muster names -- $words[2..-1] (commandline -ct) 2>/dev/null
end
complete -c muster -f -a '(__muster_names)'
";

pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    crate::output::write_out(script(args.shell).trim_end())
}

fn script(shell: Which) -> String {
    let (shell, names) = match shell {
        Which::Bash => (Shell::Bash, BASH),
        Which::Zsh => (Shell::Zsh, ZSH),
        Which::Fish => (Shell::Fish, FISH),
        Which::Elvish => (Shell::Elvish, ""),
        Which::Powershell => (Shell::PowerShell, ""),
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut crate::Args::command(), "muster", &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if let Some(end) = script.rfind(ZSH_END) {
        script.truncate(end);
    }
    script + names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_ask_for_names() {
        for shell in [Which::Bash, Which::Zsh, Which::Fish] {
            let script = script(shell);
            assert!(script.contains("muster names -- "), "{shell:?}");
        }
        assert!(script(Which::Elvish).contains("muster"));
        // One that asks, in place of the one that does not.
        assert_eq!(script(Which::Zsh).matches(ZSH_END).count(), 1);
    }
}
