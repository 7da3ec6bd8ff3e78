# frozen_string_literal: true

require_relative "test_helper"

return if RUBY_ENGINE == "jruby" # which has no RBS

require "rbs"
require "weir/dogstatsd"
%w[rack sidekiq notifications].each { |name| require "statsd/instrument/#{name}" }

# Every declared method exists.
class SignaturesTest < TestCase
  def test_every_method_exists
    loader = RBS::EnvironmentLoader.new
    loader.add(library: "logger", version: nil)
    loader.add(library: "monitor", version: nil)
    loader.add(path: Pathname(File.expand_path("../sig", __dir__)))
    environment = RBS::Environment.from_loader(loader).resolve_type_names
    own = environment.class_decls.keys.select { |name| name.to_s.start_with?("::StatsD", "::Datadog") }
    assert_operator own.size, :>, 30
    own.each { |name| check(environment.class_decls[name].decls.map(&:decl), name.to_s.delete_prefix("::")) }
  end

  def check(declarations, name)
    return if name.end_with?("Matchers") # needs RSpec

    object = Object.const_get(name)
    declarations.flat_map(&:members).each do |member|
      case member
      when RBS::AST::Members::MethodDefinition then check_method(object, member)
      when RBS::AST::Members::AttrReader, RBS::AST::Members::AttrAccessor
        assert object.method_defined?(member.name), "#{name}##{member.name}"
      end
    end
  end

  def check_method(object, member)
    return if member.name == :initialize

    if member.kind == :singleton
      assert_respond_to object, member.name
    else
      assert object.method_defined?(member.name) || object.private_method_defined?(member.name),
             "#{object}##{member.name}"
    end
  end
end
