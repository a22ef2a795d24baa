# shellcheck shell=bash
# Debian packages of a release other than the machine's, without root: apt on private
# directories, packages kept by their sha256. Expects setup.sh and cache.sh.

KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

# Prints "SUITE URI" for each source that this machine has configured, whatever its format.
configured_sources() {
    apt-get update --print-uris |
        sed -nE "s|^'(.*)/dists/([^/]+)/InRelease'.*|\2 \1|p"
}

# Prints the mirror for main packages: of the sources that carry this release, the one that
# looks like Debian's archive.
main_mirror() {
    if [[ -n ${FLOWNIC_DEBIAN_MIRROR:-} ]]; then
        printf '%s\n' "$FLOWNIC_DEBIAN_MIRROR"
        return
    fi
    # shellcheck source=/dev/null
    configured_sources | (
        . /etc/os-release
        awk -v release="${VERSION_CODENAME:-}" '
            $1 == release || $1 ~ /^(stable|testing|unstable|sid)$/ {
                if ($2 ~ /\/debian\/?$/) { best = $2; exit }
                if (other == "") other = $2
            }
            END { print best != "" ? best : other }'
    )
}

# security_mirror MAIN: prints where the security suites are, if this machine knows.
security_mirror() {
    configured_sources | awk '$1 ~ /-security$/ && $2 ~ /debian-security/ { print $2; exit }'
}

# private_apt RELEASE SUITE...: makes $CACHE/apt/RELEASE, with its index at most a day old if
# the network allows, and prints the apt configuration file. A suite may end in "-security".
private_apt() {
    local release=$1 dir=$CACHE/apt/$1 suite mirror security new
    shift
    need_cmd apt-get "images are made from Debian packages"
    [[ -r $KEYRING ]] || need_packages debian-archive-keyring
    mkdir -p "$dir"/{lists,cache/archives}/partial "$dir/none"
    : >"$dir/status"
    mirror=$(main_mirror)
    [[ -n $mirror ]] ||
        die "No Debian mirror among this machine's apt sources; set FLOWNIC_DEBIAN_MIRROR=URI"
    new=$(
        for suite; do
            if [[ $suite == *-security ]]; then
                security=$(security_mirror)
                [[ -n $security ]] || continue
                printf 'deb [arch=amd64 signed-by=%s] %s %s main\n' "$KEYRING" "$security" "$suite"
            else
                printf 'deb [arch=amd64 signed-by=%s] %s %s main\n' "$KEYRING" "$mirror" "$suite"
            fi
        done
    )
    # Proxies and the like still come from the machine's configuration; its hooks do not run.
    cat >"$dir/apt.conf" <<CONF
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Pre-Invoke;
#clear DPkg::Post-Invoke;
Dir::Etc::sourcelist "$dir/sources.list";
Dir::Etc::sourceparts "$dir/none";
Dir::Etc::preferences "$dir/none/preferences";
Dir::Etc::preferencesparts "$dir/none";
Dir::State::lists "$dir/lists";
Dir::State::status "$dir/status";
Dir::State::extended_states "$dir/extended_states";
Dir::Cache "$dir/cache";
Dir::Cache::pkgcache "pkgcache.bin";
Dir::Cache::srcpkgcache "srcpkgcache.bin";
APT::Architecture "amd64";
APT::Install-Recommends "false";
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::ForceHash "SHA256";
Acquire::Retries "2";
Acquire::http::Timeout "20";
CONF
    if [[ $new != "$(cat "$dir/sources.list" 2>/dev/null)" ]]; then
        rm -f "$dir/stamp"
        printf '%s\n' "$new" >"$dir/sources.list"
    fi
    younger_than "$FRESH_MINUTES" "$dir/stamp" || refresh "$dir/apt.conf" || true
    [[ -e $dir/stamp ]] || die "No package index for $release and the mirror $mirror does not answer"
    printf '%s\n' "$dir/apt.conf"
}

# refresh CONF: fetches the index. On failure an index from earlier stays in use for an hour.
refresh() {
    local dir
    dir=$(dirname "$1")
    progress "Refreshing the $(basename "$dir") package index"
    if apt-get -c "$1" -qq -o APT::Update::Error-Mode=any update >&2; then
        touch "$dir/stamp"
        return
    fi
    warn "The package index could not be refreshed"
    [[ ! -e $dir/stamp ]] || touch -d "$((FRESH_MINUTES - 60)) minutes ago" "$dir/stamp"
    return 1
}

# resolve CONF TARGET PACKAGE...: prints "NAME VERSION SHA256" for the packages and all they
# depend on, as installed on an empty system with the suite TARGET preferred ("-": none).
resolve() {
    local conf=$1
    local -a prefer=(-t "$2")
    [[ $2 != - ]] || prefer=()
    shift 2
    apt-get -c "$conf" -qq -y "${prefer[@]}" --print-uris install "$@" |
        sed -nE "s/^'[^']*' ([^_ ]+)_([^_ ]+)_[^_ ]+\.deb [0-9]+ SHA256:([0-9a-f]{64})$/\1 \2 \3/p" |
        sed 's/%3a/:/' | LC_ALL=C sort -u
}

# deb_path SHA256: where that package is kept.
deb_path() {
    printf '%s/debs/%s.deb\n' "$CACHE" "$1"
}

# download CONF <LIST: fetches the listed packages that are not in the cache yet.
download() {
    local conf=$1 name version sha dir file
    local -a wanted=()
    local -A known=()
    while read -r name version sha; do
        known[$sha]=1
        [[ -e $(deb_path "$sha") ]] || wanted+=("$name=$version")
    done
    ((${#wanted[@]})) || return 0
    progress "Downloading ${#wanted[@]} packages"
    dir=$(begin "$CACHE/debs/download")
    (cd "$dir" && apt-get -c "$conf" -qq download "${wanted[@]}" >&2) || return 1
    # Callers test our status, so nothing below may rely on errexit.
    for file in "$dir"/*.deb; do
        sha=$(sha256sum "$file" | cut -d' ' -f1)
        [[ -n ${known[$sha]:-} ]] || die "$(basename "$file") is not what the index promised"
        mv "$file" "$(deb_path "$sha")" || return 1
    done
    rm -rf "$dir"
}

# packages CONF TARGET FILTER PACKAGE...: resolves and downloads, prints the list of those whose
# name matches the extended regular expression FILTER. An index that names files that are gone
# from the mirror is refreshed once.
packages() {
    local conf=$1 target=$2 filter=$3 list attempt
    shift 3
    for attempt in 1 2; do
        list=$(resolve "$conf" "$target" "$@" | grep -E "^($filter) ") ||
            die "The release has no installable: $*"
        if download "$conf" <<<"$list"; then
            printf '%s\n' "$list"
            return
        fi
        if ((attempt == 2)) || ! refresh "$conf"; then
            break
        fi
    done
    die "Could not download: $*"
}

# unpack DIR <LIST: unpacks the listed packages over one another, with the merged /usr that
# they expect.
unpack() {
    local dir=$1 sha link
    mkdir -p "$dir"/usr/{bin,sbin,lib,lib64}
    for link in bin sbin lib lib64; do
        ln -sfn "usr/$link" "$dir/$link"
    done
    while read -r _ _ sha; do
        dpkg-deb --fsys-tarfile "$(deb_path "$sha")" |
            tar -x -C "$dir" --keep-directory-symlink --no-same-owner --no-same-permissions \
                --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' --exclude='./usr/share/locale/*'
    done
}
