# shellcheck shell=bash disable=SC2034,SC2154
# Shared by the scripts of this folder: source it, do not run it.
#
# Parts (programs that are downloaded or built once) lie in .cache/cluster of the checkout. Everything that a running
# cluster writes lies in STATE, a short path because unix sockets in it must fit 107 bytes. There is one cluster a
# machine: the kubelet's folder, the bridge and its addresses are global anyway.
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"

CLUSTER=$ROOT/e2e/cluster
PARTS=$CACHE/cluster
BIN=$PARTS/bin
CNI=$PARTS/cni
STATE=/var/tmp/sluice-cluster
KEYS=$STATE/keys
LOGS=$STATE/logs
CONF=$STATE/conf
KUBECONFIG_FILE=$STATE/admin.kubeconfig
CONTAINERD_SOCKET=$STATE/containerd.sock

# The machine's end of the bridge: node address, API address, gateway and DNS server of the pods.
BRIDGE=e2e0
ADDRESS=10.244.0.1
POD_CIDR=10.244.0.0/24
SERVICE_CIDR=10.96.0.0/16
API_PORT=16443
ETCD_PORT=12379
NODE=sluice-e2e

# How much slower this machine may be than one of today (e2e/harness.py): limits are so many times as long.
SLOWER=${SLUICE_E2E_SLOWER:-1}

KUBERNETES=1.35.4
COREDNS=1.12.4
PROVISIONER=5.3.0

# The kernel settings that kubelet and CNI change; noted by up, put back by down.
SYSCTLS="net.ipv4.ip_forward vm.overcommit_memory vm.panic_on_oom kernel.panic kernel.panic_on_oops
    kernel.keys.root_maxkeys kernel.keys.root_maxbytes"

kubectl() { "$BIN/kubectl" --kubeconfig "$KUBECONFIG_FILE" "$@"; }
# ask PATH [curl's arguments …]: what the API answers; for what is asked until it is so, since every kubectl costs a
# tenth of a second.
ask() {
    local path=$1
    shift
    curl --silent --fail --noproxy '*' --max-time "$((10 * SLOWER))" --cacert "$KEYS/ca.crt" --cert "$KEYS/admin.crt" \
        --key "$KEYS/admin.key" "$@" "https://$ADDRESS:$API_PORT$path"
}
ctr() { "$BIN/ctr" --address "$CONTAINERD_SOCKET" --namespace k8s.io "$@"; }

# started PID: the clock tick at which the process was started, nothing if it is gone. With it a pid names one
# process for ever; a zombie counts as gone, since some init processes reap late.
started() {
    local line state
    line=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
    line=${line##*) }
    state=${line%% *}
    [ "$state" = Z ] || cut -d' ' -f20 <<<"$line"
}

# launch NAME COMMAND …: start it in the background, its own session, output in LOGS/NAME.log.
launch() {
    local name=$1
    shift
    setsid "$@" >"$LOGS/$name.log" 2>&1 </dev/null &
    echo "$! $(started $!)" >"$STATE/$name.pid"
}

# running NAME: does what launch started still run?
running() {
    local pid start
    [ -s "$STATE/$1.pid" ] || return 1
    read -r pid start <"$STATE/$1.pid"
    [ -n "$start" ] && [ "$(started "$pid")" = "$start" ]
}

# halt NAME [SIGNAL]: end it, by force after 5 s.
halt() {
    local pid start tries
    [ -s "$STATE/$1.pid" ] || return 0
    read -r pid start <"$STATE/$1.pid"
    for tries in $(seq 1 60); do
        running "$1" || break
        [ "$tries" -ne 1 ] || kill -s "${2:-TERM}" "$pid" 2>/dev/null || break
        [ "$tries" -lt 50 ] || kill -s KILL "$pid" 2>/dev/null || break
        sleep 0.1
    done
    rm -f "$STATE/$1.pid"
}

# until_true SECONDS WHAT COMMAND …: ask every tenth of a second, die with the end of the logs when it takes too long.
until_true() {
    local end=$((SECONDS + $1 * SLOWER)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || {
            tail -n 3 "$LOGS"/*.log >&2
            die "$what: not within the time given"
        }
        sleep 0.1
    done
}

# tenths BEGIN: seconds since BEGIN (date +%s%N), with one decimal.
tenths() {
    local passed=$((($(date +%s%N) - $1) / 100000000))
    echo "$((passed / 10)).$((passed % 10))"
}
