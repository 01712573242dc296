#!/bin/bash
# Files of 1 MB that are made to cost their reader much, in TAP: none makes the program take more than 200 MB, or more
# than 2 s of a processor. Where one did, the program would end by that limit, and not with a line about the file.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
number=0 failed=0

limited() { # KIB ARGUMENT...
	(ulimit -d "$1" -t 2 -c 0 && shift && exec ./eth-hpp "$@") >"$folder/out" 2>&1
}
MOST=204800

limited $MOST --version || {
	echo "ok 1 - hostile files # skip the program does not start within 200 MB: sanitizers take more"
	echo "1..1"
	exit 0
}

# What costs most for a byte: many small things, deep ones, long ones, and short ones for much.
repeat() { # UNIT: with , between
	awk -v unit="$1" 'BEGIN { for (size = 0; size < 1e6; size += length(unit) + 1) printf "%s%s", size ? "," : "", unit }'
}
mkdir "$folder/values"
cd "$folder/values"
for unit in '{"a":0}' 0 '"n[0-99999]"'; do printf '[%s]' "$(repeat "$unit")" >"list of $unit"; done
awk 'BEGIN { printf "{"; for (i = 0; i < 90000; i++) printf "\"%d\":{},", i; print "\"\":0}" }' >"object of objects"
repeat '[' | tr -d , >depth
printf '"%s"' "$(repeat x | tr -d ,)" >text
printf '[{"name":"%s"}]' "$(repeat 'n[0-99999]')" >"list of nodes' names"
cd "$OLDPWD"

report() { # NAME STATUS
	number=$((number + 1))
	if [ "$2" -le 3 ] && ! grep -qi 'memory' "$folder/out"; then
		echo "ok $number - $1"
	else
		echo "not ok $number - $1"
		echo "# ended with $2"
		sed 's/^/# /' "$folder/out" | cut -c1-300
		failed=1
	fi
}

# All values, in a place in files of a format.
take() { # BEGINNING COMMAND...: of the file, up to the value; with FILE for the file
	local beginning=$1 value status
	shift
	for value in "$folder"/values/*; do
		{ printf '{%s:' "$beginning" && cat "$value" && printf '}'; } >"$folder/file.json"
		status=0
		limited $MOST "${@//FILE/$folder/file.json}" || status=$?
		report "$beginning: ${value##*/}" $status
	done
}

# One file of bytes, written for the case.
take_bytes() { # NAME COMMAND...
	local status=0
	limited $MOST "${@:2}" || status=$?
	report "$1" $status
}

cat >"$folder/cluster.json" <<-END
	{"format":"eth-hpp-cluster","version":1,"nodes":[{"name":"a","device":"T4","count":2,"intra_bandwidth":1e10,
	"intra_latency_s":1e-5,"inter_bandwidth":1e9,"inter_latency_s":1e-5}]}
END
take '"format":"eth-hpp-cluster","version":1,"nodes"' plan --cluster=FILE --model=gpt2 --output=-
awk 'BEGIN { printf "{\"format\":\"eth-hpp-cluster\",\"version\":1,\"nodes\":["
	for (i = 0; i < 9000; i++) printf "%s{\"name\":\"n%d\",\"device\":\"T4\",\"count\":1,\"intra_bandwidth\":1e10,\"inter_bandwidth\":%d}", i ? "," : "", i, 1e9 + i
	print "]}" }' >"$folder/unlike.json"
take_bytes "9,000 nodes, all unlike" plan --cluster="$folder/unlike.json" --model=gpt2 --global-batch=9000 --effort=quick --output="$folder/plan.json"
take '"model_type":"gpt2","vocab_size"' plan --cluster="$folder/cluster.json" --model=FILE --output=-
take '"format":"eth-hpp-profile","version":1,"model":"m","sequence_length":8,"dtype":"fp32","layers"' \
	plan --cluster="$folder/cluster.json" --profile=FILE --output=-
take '"format":"eth-hpp-plan","version":1,"model":{"name":"m","layers":1,"sequence_length":8},"global_batch":1,"schedule":"1f1b","pipelines"' \
	show FILE
[ "$(id -u)" -ne 0 ] || take '"format":"eth-hpp-site","version":1,"nodes"' inventory --site-file=FILE # of another owner it is not read
export ETH_HPP_INVENTORY="$folder/file.json"
take '"format":"eth-hpp-inventory","version":1,"node":"n","source":"none","gpus"' launch --model=gpt2-tiny6 --calibrate=no -- true
unset ETH_HPP_INVENTORY
{ printf '\x88\xd8\x34\x01\x01\x00\x00\x00\xff\xff\xff\x7f' && head -c 1000000 /dev/zero; } >"$folder/tokens.bin"
take_bytes "tokens: more of them than there are" train --model=gpt2-tiny6 --data="$folder/tokens.bin" --steps=1 --global-batch=1
mkdir "$folder/weights"
echo '{"model_type":"gpt2","n_layer":1,"n_embd":64,"n_head":2,"n_positions":64,"vocab_size":256}' >"$folder/weights/config.json"
head -c 1000000 /dev/zero >"$folder/text"
for length in '\xff\xff\xff\xff\xff\xff\xff\x0f' '\x40\x42\x0f\x00\x00\x00\x00\x00'; do
	{ printf %b "$length" && cat "$folder/values/object of objects"; } >"$folder/weights/model.safetensors"
	truncate -s 1000008 "$folder/weights/model.safetensors"
	take_bytes "safetensors: a header of length $length" train --model="$folder/weights/config.json" --init-from="$folder/weights" \
		--data="$folder/text" --steps=1 --global-batch=1
done
# The limit is seen where it is reached.
number=$((number + 1))
{ printf '{"format":"eth-hpp-plan","version":1,"model":' && cat "$folder/values/object of objects" && printf '}'; } >"$folder/file.json"
if ! limited $((MOST / 4)) show "$folder/file.json" && grep -q 'out of memory' "$folder/out"; then
	echo "ok $number - a quarter of the memory is too little"
else
	echo "not ok $number - a quarter of the memory is too little"
	failed=1
fi
echo "1..$number"
exit $failed
