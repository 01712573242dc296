# Manual pages. tests/unit/test_manual.sh holds eth-hpp(1) against --help of every command.
dist_man_MANS += man/eth-hpp.1 man/eth-hpp-formats.5 man/eth-hpp-plugin.8
