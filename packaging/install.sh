#!/bin/sh
# Install a released sluice from the folder or the URL that its files lie in, after checking what came:
#
#   sh install.sh --from URL|DIR [--prefix /usr/local] [--key PUBLIC_KEY]
#   curl -fsSL URL/install.sh | sh -s -- --from URL
#   sh install.sh --uninstall [--prefix /usr/local]
#
# The tarball must match SHA256SUMS; with --key (minisign's public key) SHA256SUMS must be signed by it. Another version
# that this script installed there is replaced. Nothing is done before the last line of this file has come.
set -eu
version=0.0.0
from='' prefix=/usr/local key='' uninstall=

die() {
    echo "install.sh: $*" >&2
    exit 1
}

read_arguments() {
    while [ $# -gt 0 ]; do
        case "$1" in
        --from | --prefix | --key) [ $# -gt 1 ] || die "'$1' needs a value" ;;
        esac
        case "$1" in
        --from) from=$2 && shift ;;
        --prefix) prefix=${2%/} && shift ;;
        --key) key=$2 && shift ;;
        --uninstall) uninstall=1 ;;
        *) die "unknown argument '$1'" ;;
        esac
        shift
    done
    list=$prefix/share/doc/sluice/installed
}

remove() {
    [ -f "$list" ] || die "no '$list': this script installed nothing there"
    folders=$(cat "$list.folders" 2>/dev/null || true)
    while read -r file; do
        rm -f "$prefix/$file"
    done <"$list"
    rm -f "$list" "$list.folders"
    # Of folders only those that were not there before, the deepest first, and only if nothing else lies in them.
    echo "$folders" | while read -r folder; do
        [ -z "$folder" ] || rmdir --ignore-fail-on-non-empty "$prefix/${folder#.}" 2>/dev/null || true
    done
    echo "sluice is removed from $prefix"
}

fetch() {
    case "$from" in
    http://* | https://*)
        if command -v curl >/dev/null; then
            curl --fail --silent --show-error --location --output "$work/$1" "${from%/}/$1"
        elif command -v wget >/dev/null; then
            wget -q -O "$work/$1" "${from%/}/$1"
        else
            die "neither curl nor wget is here: install one, or fetch the release and name its folder with --from"
        fi
        ;;
    *) cp "$from/$1" "$work/$1" ;;
    esac || die "cannot fetch '$1' from '$from'"
}

fetch_checked() {
    fetch SHA256SUMS
    if [ -n "$key" ]; then
        command -v minisign >/dev/null || die "--key needs minisign"
        fetch SHA256SUMS.minisig
        minisign -V -q -P "$key" -m "$work/SHA256SUMS" || die "SHA256SUMS is not signed by this key: nothing was installed"
    fi
    fetch "$name.tar.gz"
    (cd "$work" && grep " $name.tar.gz\$" SHA256SUMS | sha256sum -c >/dev/null 2>&1) ||
        die "$name.tar.gz does not match SHA256SUMS: nothing was installed"
    tar -C "$work" --no-same-owner -xzf "$work/$name.tar.gz"
}

install_files() {
    (cd "$work/$name" && find . -mindepth 2 -type f | sed 's|^\./||' | sort) >"$work/installed"
    {
        cat "$list.folders" 2>/dev/null || true
        (cd "$work/$name" && find . -type d) | while read -r folder; do
            [ -d "$prefix/$folder" ] || echo "${folder#./}"
        done
    } | sort -r -u >"$work/folders"
    cp "$list" "$work/before" 2>/dev/null || : >"$work/before"
    mkdir -p "$prefix" || die "cannot write to '$prefix': run this as root, or name a folder of yours with --prefix"
    [ -w "$prefix" ] || die "cannot write to '$prefix': run this as root, or name a folder of yours with --prefix"
    (cd "$work/$name" && tar -cf - -T "$work/installed") | tar -C "$prefix" --no-same-owner -xf -
    sed -i "s|^ExecStart=.*/sluice |ExecStart=$prefix/bin/sluice |" "$prefix/lib/systemd/system/sluice.service"
    # What another version had, and this one has no more.
    sort "$work/before" | comm -23 - "$work/installed" | while read -r file; do
        rm -f "$prefix/$file"
    done
    cp "$work/installed" "$list"
    cp "$work/folders" "$list.folders"
}

main() {
    read_arguments "$@"
    if [ -n "$uninstall" ]; then
        remove
        return
    fi
    [ -n "$from" ] || die "say with --from where the release's files lie: a URL or a folder"
    case "$(uname -m)" in
    x86_64) arch=amd64 ;;
    aarch64) arch=arm64 ;;
    *) die "no sluice is made for $(uname -m): there are amd64 and arm64" ;;
    esac
    name=sluice-$version-linux-$arch
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    fetch_checked
    install_files
    "$prefix/bin/sluice" version | head -n 1
    case ":$PATH:" in
    *":$prefix/bin:"*) ;;
    *) echo "note: $prefix/bin is not in PATH" ;;
    esac
}

main "$@"
