# frozen_string_literal: true

require_relative "test_helper"

class EnvironmentTest < TestCase
  def environment(**variables)
    StatsD::Instrument::Environment.new(variables.transform_keys(&:to_s))
  end

  def production(**variables)
    client = environment(STATSD_ENV: "production", **variables).client
    (@clients ||= []) << client
    client
  end

  def test_defaults
    client = environment.client
    assert_instance_of StatsD::Instrument::LogSink, client.sink
    assert_equal 1.0, client.default_sample_rate
    assert_nil client.prefix
    assert_nil client.default_tags
    assert_equal StatsD::Instrument::DogStatsDDatagramBuilder, client.datagram_builder_class
  end

  def test_environments
    assert_equal "development", environment.environment
    assert_equal "a", environment(STATSD_ENV: "a", RAILS_ENV: "b", RACK_ENV: "c", ENV: "d").environment
    assert_equal "b", environment(RAILS_ENV: "b", RACK_ENV: "c", ENV: "d").environment
    assert_equal "c", environment(RACK_ENV: "c", ENV: "d").environment
    assert_equal "d", environment(ENV: "d").environment
    assert_instance_of StatsD::Instrument::NullSink, environment(ENV: "test").client.sink
    %w[production staging].each do |name|
      sink = environment(STATSD_ENV: name).client.sink
      assert_instance_of StatsD::Instrument::BatchedSink, sink
      assert_equal ["localhost", 8125], [sink.host, sink.port]
      sink.shutdown(0)
    end
  end

  def test_settings
    client = production(
      STATSD_ADDR: "h:1", STATSD_PREFIX: "p", STATSD_DEFAULT_TAGS: "a,b:c", STATSD_SAMPLE_RATE: "0.5",
      STATSD_IMPLEMENTATION: "statsd", STATSD_MAX_PACKET_SIZE: "500", STATSD_AGGREGATION_INTERVAL: "7",
      STATSD_AGGREGATION_MAX_CONTEXT_SIZE: "9"
    )
    assert_equal ["p", %w[a b:c], 0.5], [client.prefix, client.default_tags, client.default_sample_rate]
    assert_equal StatsD::Instrument::StatsDDatagramBuilder, client.datagram_builder_class
    assert_equal ["h", 1, 500], [client.sink.host, client.sink.port, client.sink.max_packet_size]
    assert_equal [7.0, 9], [client.aggregating_core.flush_interval, client.aggregating_core.max_values]
  end

  def test_batching_can_be_turned_off
    assert_instance_of StatsD::Instrument::Sink, production(STATSD_BUFFER_CAPACITY: "0").sink
    _out, warnings = capture_io do
      assert_instance_of StatsD::Instrument::Sink, production(STATSD_FLUSH_INTERVAL: "0").sink
      assert_instance_of StatsD::Instrument::BatchedSink, production(STATSD_FLUSH_INTERVAL: "1").sink
    end
    assert_equal 2, warnings.lines.size
  end

  def test_unix_sockets
    client = production(STATSD_SOCKET_PATH: "/s")
    assert_equal [:uds, "/s", 8_192],
                 [client.sink.connection.type, client.sink.connection.socket_path, client.sink.max_packet_size]
    assert_equal :uds, production(STATSD_ADDR: "unixgram:///s").sink.connection.type
    stream = production(STATSD_ADDR: "unix:///s")
    assert_equal [:uds_stream, 8_192], [stream.sink.connection.type, stream.sink.max_packet_size]
  end

  def test_datadog_addresses
    where = lambda do |**variables|
      connection = production(**variables).sink.connection
      connection.host ? [connection.host, connection.port] : [connection.type, connection.socket_path]
    end
    assert_equal ["a", 8125], where.call(DD_AGENT_HOST: "a")
    assert_equal ["localhost", 9], where.call(DD_DOGSTATSD_PORT: "9")
    assert_equal ["a", 9], where.call(DD_AGENT_HOST: "a", DD_DOGSTATSD_PORT: "9")
    assert_equal ["::1", 9], where.call(DD_AGENT_HOST: "::1", DD_DOGSTATSD_PORT: "9")
    assert_equal [:uds, "/s"], where.call(DD_DOGSTATSD_SOCKET: "/s")
    assert_equal ["u", 7], where.call(DD_DOGSTATSD_URL: "udp://u:7", DD_AGENT_HOST: "a", DD_DOGSTATSD_SOCKET: "/s")
    assert_equal ["u", 8125], where.call(DD_DOGSTATSD_URL: "udp://u")
    assert_equal [:uds, "/s"], where.call(DD_DOGSTATSD_URL: "unix:///s")
    assert_equal [:uds, "/s"], where.call(DD_DOGSTATSD_URL: "unixgram:///s")
    assert_equal [:uds_stream, "/s"], where.call(DD_DOGSTATSD_URL: "unixstream:///s")
    assert_equal ["localhost", 8125], where.call(DD_DOGSTATSD_URL: "ftp://s")
    assert_equal ["w", 1], where.call(STATSD_ADDR: "w:1", DD_DOGSTATSD_URL: "unix:///s", DD_AGENT_HOST: "a")
    assert_equal [:uds, "/w"], where.call(STATSD_SOCKET_PATH: "/w", DD_DOGSTATSD_URL: "udp://u:7")
  end

  def test_datadog_tags
    tags = ->(**variables) { environment(STATSD_DD_TAGS: "1", **variables).client.default_tags }
    assert_equal %w[a b:c d], tags.call(STATSD_DEFAULT_TAGS: "a", DD_TAGS: "b:c d")
    assert_equal %w[b c], tags.call(DD_TAGS: "b,c")
    assert_equal %w[dd.internal.entity_id:p env:e service:s version:v],
                 tags.call(DD_ENTITY_ID: "p", DD_ENV: "e", DD_SERVICE: "s", DD_VERSION: "v")
    assert_nil tags.call(DD_TAGS: "a", STATSD_IMPLEMENTATION: "statsd")
    assert_nil tags.call(DD_ENV: "")
  end

  # Every metric of an application that came from statsd-instrument got tags that nobody had asked for.
  def test_datadog_tags_are_left_out_unless_asked_for
    variables = { DD_TAGS: "a", DD_ENV: "e", DD_SERVICE: "s", DD_VERSION: "v" }
    assert_nil environment(**variables).client.default_tags
    assert_nil environment(**variables, STATSD_DD_TAGS: "false").client.default_tags
    assert_equal %w[x], environment(**variables, STATSD_DEFAULT_TAGS: "x").client.default_tags
    # This one names the pod for origin detection; servers take it out.
    assert_equal %w[dd.internal.entity_id:p], environment(**variables, DD_ENTITY_ID: "p").client.default_tags
  end

  def test_origin_detection
    on = ->(**variables) { environment(**variables).origin_detection? }
    refute on.call
    assert on.call(DD_ORIGIN_DETECTION_ENABLED: "true")
    assert on.call(DD_AGENT_HOST: "a")
    assert on.call(DD_EXTERNAL_ENV: "it-false")
    refute on.call(DD_AGENT_HOST: "a", DD_ORIGIN_DETECTION_ENABLED: "false")
    refute on.call(DD_ORIGIN_DETECTION_ENABLED: "true", STATSD_IMPLEMENTATION: "statsd")
    client = environment(DD_EXTERNAL_ENV: "it-false", DD_ENTITY_ID: "p", DD_CARDINALITY: "HIGH").client
    assert_equal ["a:1|c|#dd.internal.entity_id:p|e:it-false|card:high"],
                 client.capture { client.increment("a") }.map(&:source)
    assert_equal "low", environment(DATADOG_CARDINALITY: "low").client.cardinality
    assert_nil environment(DD_CARDINALITY: "everything").client.cardinality
  end

  def test_wrong_values_say_what_is_allowed
    messages = {
      { STATSD_BUFFER_CAPACITY: "x" } => 'STATSD_BUFFER_CAPACITY is "x", but must be a whole number',
      { STATSD_AGGREGATION_INTERVAL: "soon" } => 'STATSD_AGGREGATION_INTERVAL is "soon", but must be a number',
      { STATSD_QUEUE_OVERFLOW: "wait" } => 'STATSD_QUEUE_OVERFLOW is "wait", but must be sync or drop',
      { STATSD_ADDR: "h:p" } => 'not a port in address "h:p": expected a number from 1 to 65535'
    }
    messages.each do |variables, message|
      assert_equal message, assert_raises(ArgumentError) { production(**variables) }.message
    end
  end

  def test_overrides
    client = StatsD::Instrument::Client.from_env(
      environment(STATSD_PREFIX: "p", STATSD_SAMPLE_RATE: "0.1"), prefix: "q", sink: StatsD::Instrument::NullSink.new
    )
    assert_equal ["q", 0.1], [client.prefix, client.default_sample_rate]
  end

  def test_the_singleton_client_and_the_names_to_require
    ["statsd-instrument", "weir-statsd", "statsd/instrument"].each do |name|
      code = "require #{name.inspect}; StatsD.increment('a', tags: ['x']); p StatsD.singleton_client.sink.class"
      output, status = ruby(code, env: { "STATSD_ENV" => nil })
      assert_predicate status, :success?, output
      assert_includes output, "[StatsD] a:1|c|#x"
      assert_includes output, "StatsD::Instrument::LogSink"
    end
  end

  def test_rails
    code = <<~RUBY
      module Rails
        class Railtie
          def self.initializer(name, &block) = (@blocks ||= []) << block
          def self.run = @blocks.each(&:call)
        end
        def self.env = "staging"
        def self.logger = @logger ||= Object.new
      end
      require "statsd-instrument"
      StatsD::Instrument::Railtie.run
      p StatsD.logger.equal?(Rails.logger), StatsD::Instrument::Environment.new({}).environment
    RUBY
    assert_equal "true\n\"staging\"\n", ruby(code, env: { "STATSD_ENV" => nil }).first
  end

  def test_strict_mode
    code = <<~RUBY
      require "statsd-instrument"
      def wrong
        yield
        puts "nothing raised"
      rescue ArgumentError, TypeError => e
        puts e.message
      end
      wrong { StatsD.increment("a", 1.5) }
      wrong { StatsD.increment("a") { } }
      wrong { StatsD.gauge("a", "1") }
      wrong { StatsD.set("a", 1) { } }
      wrong { StatsD.measure("a", 1) { } }
      wrong { StatsD.distribution("a") }
      wrong { StatsD.histogram("a", 1, sample_rate: "1") }
      wrong { StatsD.increment("a", tags: "x") }
      %i[increment gauge measure distribution histogram set service_check].each do |method|
        wrong { StatsD.public_send(method, nil, 1) }
        wrong { StatsD.public_send(method, "", 1) }
      end
      wrong { StatsD.measure(nil) { } }
      wrong { StatsD.event(nil, "x") }
      wrong { StatsD.gauge("a", 1, tags: ["x", ["y"]]) }
      wrong { StatsD.event("a", "x", tags: [{ y: 1 }]) }
      wrong { Class.new { extend StatsD::Instrument; def m; end; statsd_count "m", "a" } }
      wrong { Class.new { extend StatsD::Instrument; def m; end; statsd_count :m, :a } }
      klass = Class.new { extend StatsD::Instrument; def m; end; statsd_count_if(:m, "a") { true } }
      datagrams = StatsD.singleton_client.capture do
        StatsD.increment("a", 2, sample_rate: 0.5, tags: ["x"])
        StatsD.increment("a", by: 3)
        StatsD.gauge("a", 1, cardinality: "low")
        StatsD.histogram("a", 1)
        StatsD.set("a", 1)
        StatsD.event("a", "x", tags: ["x"])
        StatsD.service_check("a", :ok, tags: { x: 1 })
        StatsD.measure("a", 1)
        puts StatsD.measure("a") { "value" }
        puts StatsD.distribution("a") { "value" }
        klass.new.m
      end
      puts datagrams.map { |d| d.type }.join(" ")
    RUBY
    output, status = ruby(code, env: { "STATSD_STRICT_MODE" => "1", "STATSD_ENV" => "test" })
    assert_predicate status, :success?, output
    nameless = "The name argument should be a string, got nil\n"
    empty = "The name argument should not be empty\n"
    names = [nameless, empty].cycle.first(14).join + (nameless * 2)
    assert_equal <<~TEXT, output
      The value argument should be an integer, got 1.5
      StatsD.increment does not accept a block
      The value argument should be a number, got "1"
      StatsD.set does not accept a block
      The value argument should not be set when providing a block
      The value argument should be a number, got nil
      The sample_rate argument should be a number, got "1"
      The tags argument should be a hash, a proc or an array, got "x"
      #{names}A tag should be a string, got ["y"]
      A tag should be a string, got {:y=>1}
      The method name should be provided as symbol, got "m"
      The metric name should be a proc or string, got :a
      value
      value
      c c g h s _e _sc ms ms d c
    TEXT
  end

  def columns_of(env)
    environment = StatsD::Instrument::Environment.new(env)
    [environment.columns_address, environment.statsd_socket_path, environment.statsd_addr]
  end

  def test_addresses_of_columns
    http = "http://agent:9000"
    unix = "http+unix:///run/dsd-http.sock"
    assert_equal [nil, "", "localhost:8125"], columns_of({})
    assert_equal [http, "", "agent:8125"], columns_of("STATSD_ADDR" => http)
    assert_equal [http, "", "other:99"],
                 columns_of("STATSD_ADDR" => http, "DD_AGENT_HOST" => "other", "DD_DOGSTATSD_PORT" => "99")
    assert_equal [unix, "", "127.0.0.1:8125"], columns_of("DD_DOGSTATSD_URL" => unix)
    assert_equal [unix, "/dsd.sock", "127.0.0.1:8125"],
                 columns_of("DD_DOGSTATSD_URL" => unix, "DD_DOGSTATSD_SOCKET" => "/dsd.sock")
    assert_equal [http, "", "h:1"], columns_of("STATSD_ADDR" => "h:1", "STATSD_COLUMNS" => http)
    assert_equal [nil, "", "h:1"], columns_of("STATSD_ADDR" => "h:1", "STATSD_COLUMNS" => "")
  end

  def test_columns_only_where_the_environment_sends
    env = { "STATSD_COLUMNS" => "http://127.0.0.1:1", "STATSD_COLUMNS_MAX_BYTES" => "1000" }
    assert_nil StatsD::Instrument::Environment.new(env.merge("STATSD_ENV" => "test")).client.columns
    client = StatsD::Instrument::Environment.new(env.merge("STATSD_ENV" => "production")).client
    refute_nil client.columns
    refute_predicate client.columns, :active?
    client.shutdown(0.1)
    env["STATSD_COLUMNS"] = "https://127.0.0.1:1"
    assert_raises(ArgumentError) { StatsD::Instrument::Environment.new(env.merge("STATSD_ENV" => "production")).client }
  end
end
