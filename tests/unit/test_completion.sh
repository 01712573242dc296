#!/bin/bash
# What bash would complete, in TAP.
set -eu
number=0 failed=0
# shellcheck source=/dev/null
. "${srcdir:-.}/contrib/completion/eth-hpp"
# shellcheck disable=SC2317 # it is called
compopt() { :; } # bash has it only while it completes

completes() { # NAME EXPECTED WORD...: the last word is the one being typed
	local name=$1 expected=$2
	shift 2
	COMP_WORDS=(./eth-hpp "$@")
	COMP_CWORD=$#
	_eth_hpp
	number=$((number + 1))
	if [ "${COMPREPLY[*]}" = "$expected" ]; then
		echo "ok $number - $name"
	else
		echo "not ok $number - $name"
		echo "# expected: $expected"
		echo "# completed: ${COMPREPLY[*]}"
		failed=1
	fi
}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/dir"
touch "$folder/plan.json" "$folder/profile.json"

completes "commands" "plan profile" p
completes "the program's own options" "--version" --v
completes "options, with = where a value follows" "--max-tp= --max-in-flight= --max-pipelines=" plan --max
completes "a flag" "--no-recompute" plan --no
completes "an option whose value may be left out" "--resume=" train --res
completes "files behind =" "$folder/plan.json" plan --cluster = "$folder/pl"
completes "files behind a blank" "$folder/plan.json" plan --cluster "$folder/pl"
completes "folders where a folder is wanted" "$folder/dir" train --checkpoint = "$folder/"
completes "no value of a number" "" plan --max-tp = ""
completes "what a checkpoint command does" "verify" checkpoint v
completes "nothing behind --" "" launch -- ./train --c
completes "nothing of a command that there is not" "--help" paln --

echo "1..$number"
exit $failed
