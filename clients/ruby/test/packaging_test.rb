# frozen_string_literal: true

require_relative "test_helper"

return if RUBY_ENGINE == "jruby" # from a jar it has neither gem nor a command to start
# Both passes would install the same gem.
return if StatsD::Instrument::NATIVE

require "fileutils"
require "open3"
require "rubygems/package"

# The gem as users get it: built, installed and loaded, on machines that can compile and on those that cannot.
class PackagingTest < TestCase
  ROOT = File.expand_path("..", __dir__)
  COMPILER = /(?:\A|-)(?:cc|gcc|g\+\+|c\+\+|clang|c89|c99|cpp|tcc)(?:-[\d.]+)?\z/

  def run_command(*command, env: {}, chdir: Dir.pwd)
    output, status = Open3.capture2e({ "RUBYOPT" => nil, "WEIR_PURE_RUBY" => nil }.merge(env), *command, chdir: chdir)
    assert_predicate status, :success?, output
    output
  end

  # Builds from another folder, where warnings are errors.
  def gem_file(directory)
    path = File.join(directory, "weir-statsd.gem")
    run_command("gem", "build", "--strict", "-C", ROOT, "weir-statsd.gemspec", "--output", path, chdir: directory)
    path
  end

  def contents(path)
    run_command("gem", "spec", path, "files").scan(/^- (.+)$/).flatten
  end

  # Everything there is, compilers left out.
  def path_without_compiler(directory)
    bin = File.join(directory, "bin")
    Dir.mkdir(bin)
    ENV["PATH"].split(":").select { |folder| File.directory?(folder) }.each do |folder|
      Dir.each_child(folder) do |name|
        link = File.join(bin, name)
        File.symlink(File.join(folder, name), link) unless COMPILER.match?(name) || File.symlink?(link)
      end
    end
    bin
  end

  def install(directory, env)
    home = File.join(directory, "gems")
    file = gem_file(directory)
    log = run_command("gem", "install", "--local", "--no-document", "--install-dir", home, file, env: env)
    code = 'gem "weir-statsd"; require "statsd-instrument"; StatsD.increment("a"); print StatsD::Instrument::NATIVE'
    gems = { "GEM_HOME" => home, "GEM_PATH" => home, "STATSD_ENV" => "test" }
    [log, run_command(RbConfig.ruby, "-W0", "-e", code, env: gems, chdir: directory)]
  end

  def test_the_changelog_knows_what_comes_next_or_the_version
    headings = File.readlines(File.join(ROOT, "CHANGELOG.md")).grep(/^## /).map { |line| line[3..].strip }
    assert(headings.first == "Unreleased" || headings.first.start_with?(StatsD::Instrument::VERSION), headings.inspect)
  end

  def test_the_gem_packs_only_what_exists
    specification = Gem::Specification.load(File.join(ROOT, "weir-statsd.gemspec"))
    assert_empty specification.runtime_dependencies
    specification.files.each { |file| assert_path_exists File.join(ROOT, file) }
    assert_includes specification.files, "lib/weir-statsd.rb"
  end

  def test_the_gem_is_complete_wherever_it_is_built
    Dir.mktmpdir do |directory|
      files = contents(gem_file(directory))
      %w[LICENSE README.md CHANGELOG.md lib/statsd-instrument.rb lib/statsd/instrument/pure/cells.rb
         lib/statsd/instrument/native.rb ext/weir_statsd/weir_statsd.c sig/weir-statsd.rbs
         lib/weir/dogstatsd/compat/datadog/statsd.rb].each do |file|
        assert_includes files, file
      end
      assert_empty(files.grep(/\.so\z|\Atest|\Abench|\Atmp/))
      specification = Gem::Specification.load(File.join(ROOT, "weir-statsd.gemspec"))
      assert_equal files.sort, specification.files.sort, "the list depends on the folder"
    end
  end

  def test_the_gem_says_where_it_comes_from
    Dir.mktmpdir do |directory|
      specification = Gem::Package.new(gem_file(directory)).spec
      assert_equal "Apache-2.0", specification.license
      assert_equal "true", specification.metadata["rubygems_mfa_required"]
      module_path = File.read(File.join(ROOT, "../go/go.mod"))[%r{^module (\S+)/clients/go$}, 1]
      assert_equal "https://#{module_path}", specification.homepage, "the clients name different homes"
      { "source_code_uri" => "", "changelog_uri" => "CHANGELOG.md", "documentation_uri" => "README.md" }
        .each do |key, file|
        home, place = specification.metadata.fetch(key).split(%r{/(?:tree|blob)/main/})
        assert_equal specification.homepage, home
        assert_path_exists File.join(ROOT, "../..", place)
        assert place.end_with?(file), place
      end
    end
  end

  # A README begins with the command to type.
  def test_readmes_begin_with_an_install_line
    assert_equal "gem install weir-statsd", first_code(File.join(ROOT, "README.md"))
    assert_match(%r{\Ago get \S+/clients/go@latest\z}, first_code(File.join(ROOT, "../go/README.md")))
  end

  def first_code(path)
    File.read(path)[/^```\w*\n(.*?)\n```$/m, 1]
  end

  # Installed and used: its messages arrive.
  def test_an_installed_gem_sends
    server = udp_server
    Dir.mktmpdir do |directory|
      home = File.join(directory, "gems")
      run_command("gem", "install", "--local", "--no-document", "--install-dir", home, gem_file(directory))
      code = 'require "statsd-instrument"; StatsD.increment("installed", 3); StatsD.singleton_client.shutdown'
      env = { "GEM_HOME" => home, "GEM_PATH" => home, "STATSD_ENV" => "production", "STATSD_ADDR" => server.address }
      run_command(RbConfig.ruby, "-W0", "-e", code, env: env, chdir: directory)
    end
    wait_until("the metric") { server.lines.include?("installed:3|c") }
  end

  def test_installation_with_a_compiler_uses_the_extension
    Dir.mktmpdir { |directory| assert_equal "true", install(directory, {}).last }
  end

  def test_installation_without_a_compiler_succeeds
    Dir.mktmpdir do |directory|
      _, native = install(directory, { "PATH" => path_without_compiler(directory) })
      assert_equal "false", native
    end
  end

  # As where Ruby's header files are a package of their own that nobody has installed.
  def test_installation_without_headers_succeeds
    Dir.mktmpdir do |directory|
      stub = File.join(directory, "no_headers.rb")
      File.write(stub, <<~RUBY)
        require "rbconfig"
        [RbConfig::CONFIG, RbConfig::MAKEFILE_CONFIG].each { |config| config["rubyhdrdir"] = "/nonexistent" }
      RUBY
      log, native = install(directory, { "RUBYOPT" => "-r#{stub}" })
      assert_includes log, "1 gem installed"
      assert_equal "false", native
    end
  end
end
