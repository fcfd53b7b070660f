#!/usr/bin/env bash
# The first process of a node, which is a machine of its own to Kubernetes, without an image or a disk.
#
#   unshare --mount --uts --ipc --pid --fork --kill-child node.sh ROOT NAME CGROUP     # in the node's network namespace
#
# ROOT is the node's file system: programs and devices are those of the host, /var and /node persist, /run is new at each
# start. Everything that the node starts or mounts is in these namespaces, so SIGKILL of this process is a power cut: the
# kernel ends all processes and removes all mounts.
set -euo pipefail
root=$1 name=$2 cgroup=$3

# 0 means the writing process.
for hierarchy in /sys/fs/cgroup "/sys/fs/cgroup"/*; do
    if [ -d "$hierarchy/$cgroup/system" ]; then echo 0 >"$hierarchy/$cgroup/system/cgroup.procs"; fi
done

mount --bind "$root" "$root"
cd "$root"
mkdir -p proc run tmp var/lib var/log opt/cni/bin .host
ln -sfn /run var/run
chmod 1777 tmp
for folder in bin sbin lib lib32 lib64 libx32 usr nix etc; do
    if [ -L "/$folder" ]; then
        ln -sfn "$(readlink "/$folder")" "$folder"
    elif [ -d "/$folder" ]; then
        mkdir -p "$folder"
        mount --rbind "/$folder" "$folder"
        mount -o remount,bind,ro "$folder"
    fi
done
for folder in dev sys; do
    mkdir -p "$folder"
    mount --rbind "/$folder" "$folder"
done
mount --bind "$CNI_PLUGINS" opt/cni/bin
for program in "$KUBELET" "$KUBE_PROXY"; do
    touch "opt/${program##*/}"
    mount --bind "$program" "opt/${program##*/}"
done
pivot_root . .host
mount -t proc proc /proc
umount --lazy /.host
mount -t tmpfs tmpfs /run
# Pods may use mount propagation from the node.
mount --make-rshared /
hostname "$name"
echo 1 >/proc/sys/net/ipv4/ip_forward
# The kubelet sets these, but they belong to the whole machine, so it gets copies.
for setting in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_max{keys,bytes}; do
    install -D "/proc/sys/$setting" "/run/sysctl/$setting"
    mount --bind "/run/sysctl/$setting" "/proc/sys/$setting"
done

# Restart programs, as a service manager would.
keep_running() {
    local log=/node/log/${1##*/}.log
    while :; do
        "$@" >>"$log" 2>&1 || true
        sleep 1
    done
}

mkdir -p /node/log
keep_running containerd --config /node/containerd.toml &
until [ -S /run/containerd/containerd.sock ]; do sleep 0.05; done
keep_running /opt/kubelet --config=/node/kubelet.yaml --kubeconfig=/node/kubelet.kubeconfig --hostname-override="$name" \
    --node-ip="$NODE_IP" --node-labels="$NODE_LABELS" &
keep_running /opt/kube-proxy --config=/node/kube-proxy.yaml &
# While bash waits, it reaps orphaned processes.
wait
