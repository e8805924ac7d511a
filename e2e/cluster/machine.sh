# shellcheck shell=bash disable=SC2034,SC2154
# What a cluster changes on the machine, and how it is put back: source it, do not run it.
#
# Everything is noted before it is changed, in STATE/before, and whatever is found there is put back.

note_machine() {
    local name
    mkdir -p "$STATE/before"
    for name in $SYSCTLS; do
        [ ! -r "/proc/sys/${name//.//}" ] || cp "/proc/sys/${name//.//}" "$STATE/before/$name"
    done
    findmnt -no PROPAGATION / | tail -n 1 >"$STATE/before/propagation"
    for name in /var/lib/kubelet /var/log/pods /var/log/containers /var/lib/cni /var/lib/containerd; do
        [ -e "$name" ] || echo "$name" >>"$STATE/before/absent"
    done
}

change_machine() {
    echo 1 >/proc/sys/net/ipv4/ip_forward
    # Containers of a CSI driver show their mounts to the machine only below a shared mount. Not recursive: what is
    # mounted below / keeps its own way.
    mount --make-shared /
    ip link show "$BRIDGE" >/dev/null 2>&1 || ip link add "$BRIDGE" type bridge
    ip address replace "$ADDRESS/24" dev "$BRIDGE"
    ip link set "$BRIDGE" up
    # A container engine on the same machine may have set the policy of FORWARD to DROP.
    local direction
    for direction in -i -o; do
        iptables -w -C FORWARD "$direction" "$BRIDGE" -j ACCEPT 2>/dev/null ||
            iptables -w -I FORWARD "$direction" "$BRIDGE" -j ACCEPT
    done
}

# kill_containers: everything that containerd started, also when containerd itself is gone.
kill_containers() {
    local id pid
    if running containerd; then
        for id in $(ctr tasks list -q 2>/dev/null); do
            ctr tasks delete --force "$id" >/dev/null 2>&1 || true
        done
    fi
    halt containerd
    for pid in /proc/[0-9]*; do
        if { tr '\0' ' ' <"$pid/cmdline"; } 2>/dev/null | grep -q "containerd-shim-runc-v2 .*$CONTAINERD_SOCKET"; then
            kill -KILL "${pid#/proc/}" 2>/dev/null || true
        fi
    done
    # Left are processes of containers whose shim died; their cgroup names them.
    for pid in $(cat /sys/fs/cgroup/*/kubepods/*/*/*/cgroup.procs /sys/fs/cgroup/*/kubepods/*/*/cgroup.procs \
        /sys/fs/cgroup/kubepods/*/*/*/cgroup.procs /sys/fs/cgroup/kubepods/*/*/cgroup.procs 2>/dev/null | sort -u); do
        kill -KILL "$pid" 2>/dev/null || true
    done
}

# unmount_below FOLDER …: deepest first, several passes since a process may hold one a moment longer.
unmount_below() {
    local folder target
    for folder in "$@"; do
        findmnt -rno TARGET | grep "^$folder/" | sort -r | while read -r target; do
            umount "$(printf '%b' "$target")" 2>/dev/null || umount -l "$(printf '%b' "$target")" 2>/dev/null || true
        done
    done
}

remove_network() {
    local link direction
    for link in $(ip -o link show master "$BRIDGE" 2>/dev/null | awk -F'[ @:]+' '{ print $2 }'); do
        ip link delete "$link" 2>/dev/null || true
    done
    ip link delete "$BRIDGE" 2>/dev/null || true
    nft delete table ip kube-proxy 2>/dev/null || true
    nft delete table ip6 kube-proxy 2>/dev/null || true
    for direction in -i -o; do
        while iptables -w -D FORWARD "$direction" "$BRIDGE" -j ACCEPT 2>/dev/null; do :; done
    done
    # portmap's chains, where a pod asked for a host port.
    local chain
    for chain in CNI-HOSTPORT-DNAT CNI-HOSTPORT-SETMARK CNI-HOSTPORT-MASQ; do
        iptables -w -t nat -S 2>/dev/null | grep -- "-j $chain\$" | sed 's/^-A/-D/' | while read -r rule; do
            # shellcheck disable=SC2086
            iptables -w -t nat $rule 2>/dev/null || true
        done
        iptables -w -t nat -F "$chain" 2>/dev/null || true
        iptables -w -t nat -X "$chain" 2>/dev/null || true
    done
}

remove_cgroups() {
    local group
    for group in /sys/fs/cgroup/*/kubepods /sys/fs/cgroup/kubepods; do
        [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
}

put_back() {
    local name
    [ -d "$STATE/before" ] || return 0
    for name in $SYSCTLS; do
        [ ! -e "$STATE/before/$name" ] || cat "$STATE/before/$name" >"/proc/sys/${name//.//}" 2>/dev/null || true
    done
    [ "$(cat "$STATE/before/propagation")" = shared ] || mount --make-private /
    # What containerd and runc leave in places of their own; another engine may use them, so only what is empty goes.
    rmdir /run/containerd/runc/k8s.io /run/containerd/runc /run/containerd/s /run/containerd 2>/dev/null || true
    [ ! -e "$STATE/before/absent" ] || while read -r name; do
        findmnt -rno TARGET | grep -q "^$name/" || rm -rf "$name"
    done <"$STATE/before/absent"
}
