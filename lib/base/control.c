#include "base/control.h"

int eth_hpp_control_bytes(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    if (at[0] < 0x20 || at[0] == 0x7f)
        return 1;
    return at[0] == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0 ? 2 : 0;
}
