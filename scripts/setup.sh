#!/bin/bash
# Installs what building, testing and the demo need on Debian 12; does nothing when all is there.
#
#   scripts/setup.sh [demo|test|ci]        (default: test)
#
# demo: Debian packages and Rust. test: cargo-nextest, Node.js, promtool and what the full guest is
# made with as well. ci: cargo-deny as well.
# Needs root (or sudo) only when a package is missing, and no running systemd.
set -euo pipefail

purpose="${1:-test}"
# The oldest Rust that builds the workspace; the same as rust-version in Cargo.toml.
rust_needed=1.95
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

say() { echo "setup: $*" >&2; }
die() {
    echo "setup: error: $*" >&2
    exit 1
}

case "$purpose" in
demo | test | ci) ;;
*) die "unknown purpose '$purpose', expected demo, test or ci" ;;
esac

# ---- Debian packages ----
# A C toolchain for the few C libraries under the crates; the tools of the guest image; what the
# scripts and tests call.
packages=(
    build-essential pkg-config ca-certificates curl git
    busybox-static cpio kmod syslinux syslinux-common mtools fdisk gzip xz-utils zstd lz4
    runc iproute2 nftables jq socat procps util-linux coreutils
    python3 python3-venv
    systemd
    ovmf
)
# What the full guest of scripts/build-system-guest.sh is made with, fakeroot and uidmap where one who is
# not root makes it; bc and libelf-dev for its modules of OpenZFS.
system_guest=(mmdebstrap e2fsprogs binutils fakeroot uidmap bc libelf-dev)
# QEMU's parts refuse to be of different versions, and a machine may have one of them from
# backports: they are always installed together, at the version of qemu-system-x86.
qemu=(qemu-system-x86 qemu-utils)
# An editor that draws the screen, for the tests of consoles; shells, for those of completion; `ssh`, for
# what docs/guests.md promises.
# What builds images of containers, and the sandbox that it runs in.
[ "$purpose" = demo ] ||
    packages+=("${system_guest[@]}" vim zsh fish openssh-client buildah bubblewrap)

installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif type -P sudo >/dev/null; then
        sudo "$@"
    else
        die "root is needed to run: $*"
    fi
}
apt() { root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -qq "$@" >&2; }

missing=()
for package in "${packages[@]}"; do installed "$package" || missing+=("$package"); done
qemu_missing=
for package in "${qemu[@]}"; do installed "$package" || qemu_missing=yes; done

if [ "${#missing[@]}" -gt 0 ] || [ -n "$qemu_missing" ]; then
    type -P apt-get >/dev/null || die "this is no Debian; install by hand: ${missing[*]} ${qemu[*]}"
    say "installing ${missing[*]}${qemu_missing:+ ${qemu[*]}}"
    # A dead mirror of a foreign source must not stop us; a missing package will.
    apt update || say "apt-get update reported errors"
    if [ -n "$qemu_missing" ]; then
        version="$(apt-cache policy qemu-system-x86 | sed -n 's/^ *Candidate: //p')"
        [ -n "$version" ] && [ "$version" != "(none)" ] || die "no package qemu-system-x86"
        for package in "${qemu[@]}"; do missing+=("$package=$version"); done
    fi
    apt install -y --no-install-recommends --allow-downgrades "${missing[@]}" ||
        die "apt-get install failed"
fi
if ! apt-cache show linux-image-cloud-amd64 >/dev/null 2>&1; then
    # The guest image takes its kernel from the mirror; a bare container has no package lists.
    apt update || say "apt-get update reported errors"
fi

# ---- Node.js ----
# A test drives the API with a client written for it; Debian's version is new enough.
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }
node_version() { node --version 2>/dev/null | tr -d v; }
if [ "$purpose" != demo ] && ! { type -P npm >/dev/null && at_least 18 "$(node_version)"; }; then
    say "installing nodejs and npm"
    apt install -y --no-install-recommends nodejs npm || die "apt-get install failed"
    at_least 18 "$(node_version)" || die "Node.js 18 or newer is needed, found $(node_version)"
fi

# ---- promtool ----
# Tests check alert rules with it. The package it is in would also start a server, so only the program
# is taken out of it.
tools="$here/../target/tools"
if [ "$purpose" != demo ] && ! type -P promtool >/dev/null && [ ! -x "$tools/promtool" ]; then
    say "getting promtool"
    mkdir -p "$tools"
    unpacked="$(mktemp -d "$tools/unpack.XXXXXX")"
    (cd "$unpacked" && apt-get -qq download prometheus >&2 && dpkg-deb -x prometheus_*.deb .) ||
        die "the Debian package prometheus could not be fetched"
    mv "$unpacked/usr/bin/promtool" "$tools/promtool"
    rm -rf "$unpacked"
fi

# ---- Rust ----
export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
rust_version() { rustc --version 2>/dev/null | cut -d' ' -f2; }

if ! type -P cargo >/dev/null; then
    say "installing Rust with rustup"
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
        sh -s -- -y -q --no-modify-path --profile minimal >&2
fi
cd "$here/.."
if ! at_least "$rust_needed" "$(rust_version)"; then
    type -P rustup >/dev/null || die "Rust $rust_needed or newer is needed, found $(rust_version)"
    say "updating Rust"
    rustup -q update stable >&2
    at_least "$rust_needed" "$(rust_version)" ||
        die "Rust $rust_needed or newer is needed, rustup's default is $(rust_version)"
fi
if [ "$purpose" = ci ]; then
    for component in rustfmt clippy; do
        cargo "${component/rustfmt/fmt}" --version >/dev/null 2>&1 && continue
        say "installing $component"
        rustup -q component add "$component" >&2 || die "cargo ${component/rustfmt/fmt} is missing"
    done
fi

# ---- Cargo's helpers ----
helper() { # helper NAME: the command `cargo NAME`
    cargo "$1" --version >/dev/null 2>&1 && return
    say "building cargo-$1 (a few minutes, once)"
    # In the crate's own folder settings of this workspace would apply. Optimized it would take more than
    # twice as long to build, and run a few seconds less; nobody debugs it.
    (cd / && CARGO_PROFILE_DEV_DEBUG=0 cargo install -q --locked --debug "cargo-$1" >&2) ||
        die "cargo-$1 could not be installed"
}
[ "$purpose" = demo ] || helper nextest
[ "$purpose" != ci ] || helper deny
