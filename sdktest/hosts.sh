#!/usr/bin/env bash
# hosts.sh COMMAND...: runs a command beside network namespaces on one bridge, each with an
# address of its own, in which the tests start the processes of a deployment: three for
# routers, three for store nodes, two for proxies, and one with an etcd, if this system has
# one. PERIGEE_HOSTS is what the names of the namespaces begin with, PERIGEE_NET what the
# addresses do, PERIGEE_ETCD the address of the etcd. It needs root and iproute2, and skips
# the command in words where namespaces are not allowed.
set -euo pipefail

prefix=perigee-$$-
bridge=pgee$$
net=10.252.$((RANDOM % 250 + 1))
folder=
etcd=

skip() {
	echo "SKIPPED: $1" >&2
	exit 0
}

remove() {
	if [[ -n $etcd ]]; then
		kill "$etcd" 2>/dev/null || true
		wait "$etcd" 2>/dev/null || true
	fi
	ip link delete "$bridge" 2>/dev/null || true
	for name in $(ip netns list | awk -v prefix="$prefix" 'index($1, prefix) == 1 { print $1 }'); do
		ip netns delete "$name"
	done
	[[ -z $folder ]] || rm -rf "$folder"
}

# host NAME NUMBER: makes one.
host() {
	local name=$prefix$1
	ip netns add "$name"
	ip link add "pg$$-$1" type veth peer name eth0 netns "$name"
	ip link set "pg$$-$1" master "$bridge" up
	ip -n "$name" link set lo up
	ip -n "$name" address add "$net.$2/24" dev eth0
	ip -n "$name" link set eth0 up
}

command -v ip >/dev/null || skip "no ip in PATH (the package iproute2)"
trap remove EXIT
reason=$(ip netns add "${prefix}try" 2>&1) || skip "no network namespaces here: $reason"
reason=$(ip link add "$bridge" type bridge 2>&1) || skip "no bridges here: $reason"
ip address add "$net.1/24" dev "$bridge"
ip link set "$bridge" up
for n in 1 2 3; do
	host "r$n" $((10 + n))
	host "s$n" $((20 + n))
done
for n in 1 2; do
	host "p$n" $((30 + n))
done
export PERIGEE_HOSTS=$prefix PERIGEE_NET=$net
if command -v etcd >/dev/null; then
	host e 41
	folder=$(mktemp -d)
	ip netns exec "${prefix}e" etcd --data-dir "$folder/data" --log-outputs stderr \
		--listen-client-urls "http://$net.41:2379" --advertise-client-urls "http://$net.41:2379" >"$folder/log" 2>&1 &
	etcd=$!
	export PERIGEE_ETCD=$net.41:2379
	echo "hosts: 3 routers over etcd, 3 store nodes, 2 proxies, on $net.0/24" >&2
else
	echo "hosts: 1 router (no etcd in PATH, the package etcd-server), 3 store nodes, 2 proxies, on $net.0/24" >&2
fi
"$@"
