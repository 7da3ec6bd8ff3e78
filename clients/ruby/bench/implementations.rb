# frozen_string_literal: true

# The other clients, and this one twice.
class Implementations
  LIB = File.expand_path("../lib", __dir__)
  PURE = "weir"
  NATIVE = "weir, native"
  PEER = "statsd-instrument"
  OTHER = "dogstatsd"
  Implementation = Struct.new(:name, :kind, :lib, :env)

  def initialize(trees)
    @all = [Implementation.new(PURE, "weir", LIB, { "WEIR_PURE_RUBY" => "1" })]
    if File.exist?(File.join(LIB, "statsd/instrument/weir_statsd_native.so"))
      @all << Implementation.new(NATIVE, "weir", LIB, { "WEIR_PURE_RUBY" => nil })
    else
      warn "#{NATIVE}: not compiled, skipped"
    end
    [PEER, OTHER].each { |name| add_peer(name, trees[name]) }
  end

  def add_peer(name, tree)
    if tree && File.directory?(File.join(tree, "lib"))
      @all << Implementation.new(name, name, File.join(tree, "lib"), {})
    else
      warn "#{name}: #{tree ? "no lib directory in #{tree}" : "no tree given"}, skipped"
    end
  end

  def names
    @all.map(&:name)
  end

  # In the other direction every second time.
  def in_turn(round, &block)
    (round.even? ? @all : @all.reverse).each(&block)
  end
end
