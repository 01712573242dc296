#!/bin/sh
# Holds the manual pages against the program, the plugin and the library, in TAP: what these have is there, all of it and no more,
# in their order.
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

# Options that a manual page explains.
written() { # PAGE
	sed -n '/^\.SH OPTIONS/,/^\.SH EXIT/p' "$pages/$1" | sed -n 's/^\.B[I]* \\-\\-\([a-z\\-]*\).*/\1/p' | sed 's/\\//g'
}

commands=$(./eth-hpp --help | sed -n 's/^  \([a-z]\{1,\}\)  .*/\1/p')
for command in $commands; do
	check_same "the manual has the options of $command" "$(told "$command")" "$(written "eth-hpp-$command.1")"
done
check_same "the manual has the commands of the program" "$commands" \
	"$(sed -n '/^\.SH COMMANDS/,/^\.SH EXIT/s/^\.BR eth-hpp-\([a-z]*\) (1)$/\1/p' "$pages/eth-hpp.1")"
check_same "the library's manual has the functions of its header" \
	"$(tr '\n' ' ' <"${srcdir:-.}/lib/eth_hpp.h" | grep -o 'ETH_HPP_API [^;({]*(' | grep -o 'eth_hpp_[a-z_]*($')" \
	"$(sed -n 's/^\.B \(eth_hpp_[a-z_]*(\).*)$/\1/p' "$pages/libethhpp.3")"
# --eth-hpp itself takes the model.
check_same "the plugin's manual has the options of a job" "$(told launch | sed 's/^/eth-hpp-/; s/^eth-hpp-model$/eth-hpp/')" \
	"$(written eth-hpp-plugin.8)"
check_same "the plugin's manual has the keys of plugstack.conf" \
	"$(sed -n 's/.*\.name = "\([a-z-]*\)".*/\1/p' "${srcdir:-.}/spank/options.c" | tr - _)" \
	"$(sed -n '/^\.SH KEYS/,/^\.PP/s/^\.B[RI]* \([a-z_]*\)= .*/\1/p' "$pages/eth-hpp-plugin.8")"

echo "1..$number"
[ $number -gt 4 ] || failed=1
exit $failed
