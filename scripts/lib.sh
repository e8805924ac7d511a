# Shared by the scripts of this folder: source it, do not run it.
#
# ROOT is the checkout. Everything that scripts make lies in build*/ and .cache/ below it, or in a
# temporary directory that they remove.
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${SLUICE_CACHE:-$ROOT/.cache}
# python3 of the distribution is enough; this only keeps it from littering the checkout.
export PYTHONDONTWRITEBYTECODE=1

say() { printf '%s\n' "$*"; }
step() { printf '\n== %s\n' "$*"; }
die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# retry COMMAND …: for what the network has a part in; up to three times, with pauses.
retry() {
    local pause
    for pause in 5 20; do
        if "$@"; then return 0; fi
        sleep "$pause"
    done
    "$@"
}

# as_root COMMAND …: run it as root, directly or through sudo.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo -- "$@"
    else
        die "needs root for '$*', and there is no sudo: run scripts/deps as root first"
    fi
}

# jobs: how many compilers at once; half a gigabyte of memory each is enough for this code.
jobs_count() { nproc 2>/dev/null || echo 2; }

# http_get PORT PATH: body of an answer on loopback, without curl, for machines that have none.
http_get() (
    exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 1
    printf 'GET %s HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n' "$2" >&3
    tr -d '\r' <&3 | sed '1,/^$/d'
)
