// base/log.h: one logger, spdlog's default, on stderr; the level is set by cli/.
//
// Nothing of a prompt is logged at any level below trace.
#pragma once

#include <spdlog/spdlog.h>
