#!/bin/sh
# Holds eth-hpp(1) against the program: each command has its section, with the options of --help in their order.
set -eu
page=${srcdir:-.}/man/eth-hpp.1
failed=0
commands=$(./eth-hpp --help | sed -n 's/^  \([a-z]\{1,\}\)  .*/\1/p')
[ -n "$commands" ] || {
	echo "eth-hpp --help lists no command"
	exit 1
}
for command in $commands; do
	told=$(./eth-hpp "$command" --help | sed -n 's/^  --\([a-z-]*\).*/\1/p')
	written=$(sed -n "/^\.SS eth-hpp $command/,/^\.S[SH] /p" "$page" | sed '1d' |
		sed -n 's/^\.B[I]* \\-\\-\([a-z\\-]*\).*/\1/p' | sed 's/\\//g')
	if [ "$told" != "$written" ]; then
		echo "eth-hpp $command: --help has:" $told
		echo "eth-hpp $command: the manual page has:" $written
		failed=1
	fi
done
exit $failed
