# frozen_string_literal: true

# The gem works without the extension, so nothing here may make the installation fail: neither a missing compiler nor
# missing headers of Ruby, for which mkmf ends the process.
compiled = begin
  require "mkmf"
  if RUBY_ENGINE == "ruby" && have_header("ruby.h") && have_func("sendmmsg", "sys/socket.h")
    $CFLAGS << " -D_GNU_SOURCE -std=gnu11 -O2 -Wall -Wextra -Wno-unused-parameter" # rubocop:disable Style/GlobalVars
    create_makefile("statsd/instrument/weir_statsd_native")
    true
  end
rescue SystemExit, StandardError, LoadError => e
  warn "weir-statsd: the extension is not built (#{e.message.lines.first&.chomp}); pure Ruby does its work"
  false
end

File.write("Makefile", "all install clean:\n\t@:\n") unless compiled
