# shellcheck shell=bash
# Commands that run inside an unpacked package tree, as if it were the system. Needs root, or a
# kernel that lets users make namespaces. Expects setup.sh.

# Packages that every such tree has: what scripts and make take for granted.
# shellcheck disable=SC2034 # for whoever makes such a tree
INSIDE_PACKAGES=(dash bash coreutils findutils grep sed gawk diffutils make binutils)

# usable TREE: gives a tree what its packages' installation scripts would have made.
usable() {
    local name
    mkdir -p "$1"/{build,dev,etc,proc,tmp}
    for name in sh=dash awk=gawk; do
        [[ -e $1/usr/bin/${name%=*} ]] || ln -s "${name#*=}" "$1/usr/bin/${name%=*}"
    done
    [[ -e $1/etc/passwd ]] || echo 'root:x:0:0:root:/root:/bin/sh' >"$1/etc/passwd"
}

# inside TREE FOLDER COMMAND...: runs a command with the tree as its root and FOLDER, the only
# place that it may write to, as /build. What it prints goes to stderr.
inside() {
    local tree=$1 folder=$2 locked=${CACHE_LOCKED:-9}
    local -a namespaces=(unshare --mount)
    shift 2
    ((!EUID)) || namespaces+=(--map-root-user)
    # Whatever outlives an interrupted run must not keep the cache locked.
    # shellcheck disable=SC2016 # expanded by the inner shell
    "${namespaces[@]}" sh -euc '
        tree=$1 folder=$2
        shift 2
        mount --rbind /dev "$tree/dev"
        mount --rbind /proc "$tree/proc"
        mount -t tmpfs tmpfs "$tree/tmp"
        mount --bind "$folder" "$tree/build"
        cd "$tree"
        exec chroot . env -i PATH=/usr/sbin:/usr/bin HOME=/tmp LC_ALL=C "$@"
    ' sh "$tree" "$folder" "$@" >&2 {locked}>&-
}
