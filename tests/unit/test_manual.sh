#!/bin/sh
# Holds eth-hpp(1) against the program, in TAP: each command has its section, with the options of --help in their order.
set -eu
page=${srcdir:-.}/man/eth-hpp.1
commands=$(./eth-hpp --help | sed -n 's/^  \([a-z]\{1,\}\)  .*/\1/p')
number=0 failed=0
for command in $commands; do
	number=$((number + 1))
	told=$(./eth-hpp "$command" --help | sed -n 's/^  --\([a-z-]*\).*/\1/p')
	written=$(sed -n "/^\.SS eth-hpp $command/,/^\.S[SH] /p" "$page" | sed '1d' |
		sed -n 's/^\.B[I]* \\-\\-\([a-z\\-]*\).*/\1/p' | sed 's/\\//g')
	if [ "$told" = "$written" ]; then
		echo "ok $number - the manual has the options of $command"
	else
		echo "not ok $number - the manual has the options of $command"
		echo "# --help:" $told
		echo "# manual:" $written
		failed=1
	fi
done
echo "1..$number"
[ $number -gt 0 ] || failed=1
exit $failed
