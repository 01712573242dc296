#!/bin/sh
# Runs plan, show and simulate on a small cluster, in TAP: what they print and write, and what they refuse.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
number=0 failed=0
check() { # check TEXT COMMAND...
	text=$1
	shift
	number=$((number + 1))
	if "$@" >"$folder/out" 2>&1; then
		echo "ok $number - $text"
	else
		echo "not ok $number - $text"
		sed 's/^/# /' "$folder/out"
		failed=1
	fi
}
says() { # says TEXT COMMAND...: on either stream, whatever the exit code
	wanted=$1
	shift
	"$@" >"$folder/said" 2>&1 || true
	grep -qF -- "$wanted" "$folder/said" || { cat "$folder/said" && false; }
}
code() { # code EXPECTED COMMAND...
	expected=$1 result=0
	shift
	"$@" || result=$?
	[ "$result" -eq "$expected" ] || { echo "exit code $result" && false; }
}
no() { ! "$@"; }

cluster=$folder/cluster.json plan=$folder/plan.json
cat >"$cluster" <<-END
	{"format":"eth-hpp-cluster","version":1,"nodes":[
	 {"name":"a100-1","device":"A100-SXM-40GB","count":2,"intra_bandwidth":240e9,"inter_bandwidth":25e9},
	 {"name":"t4-1","device":"T4","count":2,"intra_bandwidth":10e9,"inter_bandwidth":5e9}]}
END
plan() { ./eth-hpp plan --cluster="$cluster" --model=gpt2 --global-batch=32 --effort=quick "$@"; }
show() { ./eth-hpp show "$@"; }

check "a plan is written with its pictures" plan --output="$plan" --trace="$folder/trace" --svg="$folder/svg"
check "the trace is JSON from its first byte to its last" \
	sh -c "head -c 1 '$folder/trace' | grep -q '{' && tail -n 1 '$folder/trace' | grep -qx ']}'"
check "the picture ends where it should" sh -c "tail -n 1 '$folder/svg' | grep -qx '</svg>'"
check "show draws the step of an estimated plan with its cluster" \
	says "F f forward, B b backward" show --cluster="$cluster" "$plan"
check "without colours where nobody looks" no grep -q "$(printf '\033')" "$folder/said"
check "show says what it needs to draw" says "--cluster=FILE and --profile=FILE draw the step" show "$plan"
check "show takes options behind the plan" \
	says "rank 0, a100-1 GPU 0, A100-SXM-40GB" show "$plan" --cluster "$cluster" --svg "$folder/svg2"
check "the same plan gives the same picture" cmp "$folder/svg" "$folder/svg2"
check "a picture without its cluster is refused" code 2 show "$plan" --svg="$folder/none"
check "and not begun" no test -e "$folder/none"
sed 's/"idle": \[/&{"node":"t4-5","gpus":[0],"ranks":[4],"why":"slow"},{"node":"t4-4","gpus":[0],"ranks":[5],"why":"slow"},/' "$plan" >"$folder/idle.json"
check "idle nodes are listed in their order" says "idle: t4-[4-5] GPU 0: slow" show "$folder/idle.json"
check "two plans are refused" says "one plan file is needed, 2 are given" show "$plan" "$plan"
check "a folder that is not there is said" says "nowhere" plan --svg="$folder/nowhere/svg"
check "pictures want files" says "--trace needs a file" plan --trace=-
check "a plan is explained" says "what bounds" ./eth-hpp plan --help
check "in words" says "the step of " plan --explain
check "and in JSON" sh -c "./eth-hpp plan --cluster='$cluster' --model=gpt2 --global-batch=32 --effort=quick --explain \
	--json 2>'$folder/table' | grep -q '\"one_more_node\"'"
check "JSON of what was not asked for is refused" says "--json belongs to --explain" plan --json
check "two texts on one stream are refused" \
	says "both want standard output" plan --explain --json --output=-
echo "1..$number"
exit $failed
