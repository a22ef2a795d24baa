# shellcheck shell=bash
# Unpacked package trees and how to run programs out of them on any Linux, through the tree's
# own loader and libraries. Expects setup.sh, cache.sh and apt.sh.

# The release that programs come from, newer than the machine's: its netperf is free software
# and its ethtool speaks of RSS contexts.
USERLAND=trixie
LIBDIR=usr/lib/x86_64-linux-gnu

# tree <LIST: unpacks the listed packages, or finds them unpacked, and prints the directory.
# `packages` in it is the list.
tree() {
    local list out new
    list=$(cat)
    out=$CACHE/trees/$(key_of <<<"$list$(cat "$(repo_root)"/images/lib/{apt,tree}.sh)")
    if [[ -d $out ]]; then
        touch "$out"
    else
        progress "Unpacking $(wc -l <<<"$list") packages"
        new=$(begin "$out")
        unpack "$new" <<<"$list"
        printf '%s\n' "$list" >"$new/packages"
        finish "$new" "$out"
    fi
    printf '%s\n' "$out"
}

# loader TREE ARG...: runs the tree's dynamic loader.
loader() {
    local tree=$1
    shift
    "$tree/$LIBDIR/ld-linux-x86-64.so.2" --library-path "$(library_path "$tree")" "$@"
}

# Programs' own search paths name the machine's directories, so private ones are listed here.
library_path() {
    local dirs
    dirs=$(cd "$1/$LIBDIR" && find . -mindepth 2 -maxdepth 2 -name 'lib*.so*' -printf '%h\n' | sort -u)
    printf '%s' "$1/$LIBDIR"
    printf '%s\n' "$dirs" | sed -n "s|^\./\(.*\)|:$1/$LIBDIR/\1|p" | tr -d '\n'
    printf '\n'
}

# program TREE NAME: prints the path of a program in the tree.
program() {
    local dir
    for dir in bin sbin; do
        [[ -x $1/usr/$dir/$2 ]] || continue
        printf '%s\n' "$1/usr/$dir/$2"
        return
    done
    die "No program '$2' among the packages in images/programs"
}

# libraries TREE FILE: prints the paths of the libraries that FILE needs; none if it is static.
libraries() {
    local list
    loader "$1" --verify "$2" 2>/dev/null || return 0
    list=$(loader "$1" --list "$2")
    if grep -q 'not found' <<<"$list"; then
        die "$(basename "$2") lacks libraries: $list"
    fi
    awk '$2 == "=>" && $3 ~ /^\// { print $3 }' <<<"$list"
}

# wrapper TREE NAME VARIABLES ARG...: prints a script that runs a program of the tree, with
# VARIABLES ("A=b C=d") in its environment and ARGs before the caller's.
wrapper() {
    local tree=$1 file variables=$3 name=$2
    file=$(program "$tree" "$name")
    shift 3
    printf '#!/bin/sh\nexec env %s' "$variables"
    if loader "$tree" --verify "$file" 2>/dev/null; then
        printf " '%s'" "$tree/$LIBDIR/ld-linux-x86-64.so.2" --library-path "$(library_path "$tree")" \
            --argv0 "$name"
    fi
    printf " '%s'" "$file" "$@"
    printf ' "$@"\n'
}

# run TREE NAME ARG...: runs a program of the tree.
run() {
    local tree=$1 file
    file=$(program "$tree" "$2")
    shift 2
    loader "$tree" "$file" "$@"
}

# tool_packages: the packages of images/programs; tool_tree: the tree with all of them.
tool_packages() {
    sed -E 's/#.*//; s/[[:space:]].*//; /^$/d' "$(repo_root)/images/programs"
}

tool_tree() {
    cached tools "$(key_of_files "$(repo_root)"/images/{programs,lib/{apt,tree}.sh})" make_tool_tree
}

make_tool_tree() {
    local conf list
    local -a wanted
    conf=$(private_apt "$USERLAND" "$USERLAND" "$USERLAND-updates" "$USERLAND-backports")
    mapfile -t wanted < <(tool_packages)
    list=$(packages "$conf" - '.*' "${wanted[@]}")
    tree <<<"$list"
}

# make_cpio TOOLS ROOT: writes the directory as a cpio archive owned by root, the same bytes
# for the same content.
make_cpio() {
    find "$2" -exec touch -h -d @0 {} +
    (cd "$2" && find . -mindepth 1 -print0 | LC_ALL=C sort -z |
        run "$1" cpio --null --create --quiet --format=newc --reproducible --owner=0:0)
}
