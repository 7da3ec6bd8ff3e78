# frozen_string_literal: true

require "mkmf"

# The gem works without the extension, so nothing here may make the installation fail.
if RUBY_ENGINE == "ruby" && have_header("ruby.h") && have_func("sendmmsg", "sys/socket.h")
  $CFLAGS << " -D_GNU_SOURCE -std=gnu11 -O2 -Wall -Wextra -Wno-unused-parameter" # rubocop:disable Style/GlobalVars
  create_makefile("statsd/instrument/weir_statsd_native")
else
  File.write("Makefile", "all install clean:\n\t@:\n")
end
