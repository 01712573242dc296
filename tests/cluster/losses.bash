# shellcheck shell=bash
# Comparing the losses of trainings whose metrics lie in NAME.jsonl, STEPS steps each.

losses() { sed -n 's/.*"step": *\([0-9]*\),"loss": *\([0-9.e+-]*\).*/\1 \2/p' "$TEST_WORK/$1.jsonl"; }

# All steps, each once, with the losses of the reference within 1e-4.
same_losses_as_reference() { same_losses "$1" reference; }
same_losses() { # NAME REFERENCE
	losses "$2" >"$TEST_WORK/a"
	losses "$1" >"$TEST_WORK/b"
	[ "$(wc -l <"$TEST_WORK/a")" -eq $STEPS ] && [ "$(wc -l <"$TEST_WORK/b")" -eq $STEPS ] || {
		echo "not $STEPS losses in $1"
		return 1
	}
	paste "$TEST_WORK/a" "$TEST_WORK/b" | awk '
		$1 != $3 { wrong = 1; print "step " $3 " in place of " $1 }
		{ d = ($4 - $2) / $2; if (d < 0) d = -d; if (d > most) { most = d; at = $1 } }
		END { print "largest relative difference " most + 0 " at step " at; exit wrong || !(most < 1e-4) }'
}
