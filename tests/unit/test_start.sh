#!/bin/sh
# What the program opens when it starts, in TAP: what plans, shows or launches does without the libraries that compute
# and transfer, and so starts faster.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
number=0 failed=0
cat >"$folder/cluster.json" <<END
{"format":"eth-hpp-cluster","version":1,"nodes":[{"name":"a","device":"T4","count":2,"intra_bandwidth":1e10,
"intra_latency_s":1e-5,"inter_bandwidth":1e9,"inter_latency_s":1e-5}]}
END
cat >"$folder/inventory.json" <<END
{"format":"eth-hpp-inventory","version":1,"node":"a","collected_at":"2026-01-01T00:00:00Z","source":"file","driver":null,
"nccl":null,"gpus":[{"index":0,"uuid":"GPU-0","name":"Tesla T4","device":"T4","memory_bytes":16106127360,
"compute_capability":"7.5","multiprocessors":40,"max_sm_clock_hz":1590000000,"pci":"0000:07:00.0","pcie_generation":3,
"pcie_width":16,"numa_node":0,"mig":false,"healthy":true}],"gpu_links":[],"nics":[],
"emulation":{"devices":["T4"],"speed":[1.0],"time_scale":1e3}}
END
opens_neither() { # opens_neither TEXT COMMAND...
	number=$((number + 1)) text=$1 said=ok
	shift
	if ! LD_DEBUG=files LD_DEBUG_OUTPUT="$folder/opened" ./eth-hpp "$@" >"$folder/out" 2>&1 ||
		! grep -q 'libjson-c' "$folder"/opened.* || grep -qE 'lib(dnnl|ucp)\.so' "$folder"/opened.*; then
		said="not ok" failed=1
		cat "$folder/out"
	fi
	echo "$said $number - $text"
	rm -f "$folder"/opened.*
}
opens_neither "plan opens neither oneDNN nor UCX" plan --cluster="$folder/cluster.json" --model=gpt2-tiny6 \
	--effort=quick --output="$folder/plan.json"
opens_neither "show opens neither" show "$folder/plan.json"
export ETH_HPP_INVENTORY="$folder/inventory.json"
opens_neither "launch without calibration opens neither" launch --model=gpt2-tiny6 --calibrate=no -- true
echo "1..$number"
exit $failed
