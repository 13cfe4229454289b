# To be sourced: Debian's packages of main and contrib, wherever this machine gets those of main from,
# without a change to what apt knows here. OpenZFS is in contrib.
#
#   private_apt FOLDER      FOLDER is apt's memory, kept from run to run. Sets
#                             contrib_sources   files of apt sources
#                             apt_private       options for apt-get and apt-cache

private_apt() {
    local state="$1" entry file
    contrib_sources=()
    mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
    rm -rf "$state/parts"
    mkdir "$state/parts"
    # Files that name Debian; a line of the listing ends with the number of its entry.
    while read -r entry; do
        file="$state/parts/${entry##*/}"
        case "$entry" in
        *.sources) sed -E '/^Components:/ { /\bcontrib\b/! s/\bmain\b/main contrib/ }' "$entry" ;;
        *) sed -E '/^deb/ { /\bcontrib\b/! s/\bmain\b/main contrib/ }' "$entry" ;;
        esac >"$file"
        contrib_sources+=("$file")
    done < <(apt-get indextargets --format '$(SOURCESENTRY)' 'Created-By: Packages' 'Origin: Debian' |
        sed 's/:[0-9]*$//' | LC_ALL=C sort -u)
    [ "${#contrib_sources[@]}" -gt 0 ] || return 1
    apt_private=(-o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$state/parts"
        -o Dir::State::Lists="$state/lists" -o Dir::Cache="$state/cache" -o APT::Sandbox::User=root)
    apt-get "${apt_private[@]}" -qq update >&2
}
