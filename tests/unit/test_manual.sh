#!/bin/sh
# Holds the manual pages against the program and the plugin, in TAP: each has its options, all of them, in their order.
set -eu
pages=${srcdir:-.}/man
number=0 failed=0

check_same() { # NAME TOLD WRITTEN
	number=$((number + 1))
	if [ -n "$2" ] && [ "$2" = "$3" ]; then
		echo "ok $number - $1"
	else
		echo "not ok $number - $1"
		echo "$2" | sed 's/^/# program: /'
		echo "$3" | sed 's/^/# manual: /'
		failed=1
	fi
}

# Options that a command's --help lists.
told() { # COMMAND
	./eth-hpp "$1" --help | sed -n 's/^  --\([a-z-]*\).*/\1/p'
}

# Options that a manual page on standard input explains.
written() {
	sed -n 's/^\.B[I]* \\-\\-\([a-z\\-]*\).*/\1/p' | sed 's/\\//g'
}

for command in $(./eth-hpp --help | sed -n 's/^  \([a-z]\{1,\}\)  .*/\1/p'); do
	check_same "the manual has the options of $command" "$(told "$command")" \
		"$(sed -n "/^\.SS eth-hpp $command/,/^\.S[SH] /p" "$pages/eth-hpp.1" | sed '1d' | written)"
done

# --eth-hpp itself takes the model.
check_same "the plugin's manual has the options of a job" "$(told launch | sed 's/^/eth-hpp-/; s/^eth-hpp-model$/eth-hpp/')" \
	"$(sed -n '/^\.SH OPTIONS/,$p' "$pages/eth-hpp-plugin.8" | written)"
check_same "the plugin's manual has the keys of plugstack.conf" \
	"$(sed -n 's/.*\.name = "\([a-z-]*\)".*/\1/p' "${srcdir:-.}/spank/options.c" | tr - _)" \
	"$(sed -n '/^\.SH KEYS/,/^\.PP/s/^\.B[RI]* \([a-z_]*\)= .*/\1/p' "$pages/eth-hpp-plugin.8")"

echo "1..$number"
[ $number -gt 2 ] || failed=1
exit $failed
