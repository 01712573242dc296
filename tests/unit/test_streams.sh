#!/bin/sh
# Runs the program with standard streams that are full or closed, in TAP: what cannot be said must not look like success.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
number=0 failed=0
check() { # check TEXT EXPECTED-CODE CODE
	number=$((number + 1))
	if [ "$2" = "$3" ]; then
		echo "ok $number - $1"
	else
		echo "not ok $number - $1 (exit code $3, not $2)"
		failed=1
	fi
}
code() { # code COMMAND...: leaves its exit code and what it said in files
	result=0
	"$@" 2>"$folder/said" || result=$?
	echo $result >"$folder/code"
}
code ./eth-hpp --help >/dev/full
check "a full standard output fails the help" 1 "$(cat "$folder/code")"
grep -q '^eth-hpp: cannot write to standard output: No space left on device$' "$folder/said"
check "and the reason is said" 0 $?
code ./eth-hpp --version >&-
check "a closed standard output fails the version" 1 "$(cat "$folder/code")"
code ./eth-hpp inventory --output="$folder/inventory.json" >&-
check "a closed standard output that is not needed does no harm" 0 "$(cat "$folder/code")"
result=0
./eth-hpp plan --cluster="$folder/nothing" --model=gpt2 <&- >&- 2>&- || result=$?
check "without any stream a wrong file keeps its exit code" 2 $result
echo "1..$number"
exit $failed
