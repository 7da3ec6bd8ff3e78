# frozen_string_literal: true

require_relative "test_helper"

class TelemetryTest < TestCase
  def test_everything_accepted_is_counted
    server = udp_server
    client = network_client(server)
    3.times { client.increment("a") }
    client.distribution("d", 1)
    client.event("t", "x")
    client.service_check("n", :ok)
    client.increment("stamped", timestamp: 5)
    client.flush(sync: true)
    counts = client.telemetry.to_h
    assert_equal({ metrics: 5, events: 1, service_checks: 1, aggregated_context: 2 },
                 counts.slice(:metrics, :events, :service_checks, :aggregated_context))
    wait_until("all lines") { server.lines.size == 5 }
    assert_equal server.packets_so_far.size, counts[:packets_sent]
    assert_equal server.packets_so_far.sum(&:bytesize), counts[:bytes_sent]
    assert_equal StatsD::Instrument::Telemetry::COUNTERS.keys, counts.keys
  end

  def test_reports_are_differences
    server = udp_server
    client = network_client(server, telemetry: true, default_tags: ["d"], container_id: "id")
    core = client.aggregating_core
    report = core.instance_variable_get(:@report)
    2.times { client.increment("a") }
    client.flush(sync: true)
    lines = []
    assert(report.each_message(force: true) { |line| lines << line })
    suffix = "|c|#d,client:weir-ruby,client_version:#{StatsD::Instrument::VERSION},client_transport:udp|c:id"
    assert_includes lines, "datadog.dogstatsd.client.metrics:2#{suffix}"
    assert_includes lines, "datadog.dogstatsd.client.packets_sent:1#{suffix}"
    assert_equal 12, lines.size
    lines.clear
    report.each_message(force: true) { |line| lines << line }
    assert_includes lines, "datadog.dogstatsd.client.metrics:0#{suffix}"
    refute(report.each_message { flunk("not due") })
  end

  def report_of(**options)
    client = StatsD::Instrument::Client.new(aggregation_flush_interval: 3600.0, **options)
    (@clients ||= []) << client
    client.instance_variable_get(:@aggregator)&.core&.instance_variable_get(:@report)
  end

  def test_clients_that_batch_report_unless_told_otherwise
    sink = StatsD::Instrument::BatchedSink.for_addr(udp_server.address)
    assert report_of(sink: sink)
    assert report_of(sink: sink, enable_aggregation: false)
    refute report_of(sink: sink, telemetry: false)
    refute report_of(sink: sink, implementation: "statsd")
    refute report_of(sink: StatsD::Instrument::Sink.for_addr(udp_server.address))
    assert report_of(sink: StatsD::Instrument::Sink.for_addr(udp_server.address), telemetry: true)
    env = { "STATSD_ENV" => "production", "STATSD_ADDR" => udp_server.address }
    { nil => true, "false" => false, "0" => false, "true" => true }.each do |value, on|
      client = StatsD::Instrument::Environment.new(env.merge("STATSD_TELEMETRY" => value).compact).client
      (@clients ||= []) << client
      core = client.aggregating_core
      assert_equal on, !core.instance_variable_get(:@report).nil?, value.inspect
    end
  end

  def test_clients_that_share_a_sink_report_once
    sink = StatsD::Instrument::BatchedSink.for_addr(udp_server.address)
    reports = Array.new(2) { report_of(sink: sink) }
    sink.telemetry.dropped(:queue, 10)
    lines = []
    reports.each { |report| report.each_message(force: true) { |line| lines << line[/packets_dropped:\d+/] } }
    assert_equal ["packets_dropped:0", "packets_dropped:1"], lines.compact.sort
  end

  # The client's report has its losses, with their reasons.
  def test_drops_are_reported
    server = udp_server
    sink = StatsD::Instrument::BatchedSink.for_addr(server.address)
    client = StatsD::Instrument::Client.new(sink: sink, aggregation_flush_interval: 3600.0)
    (@clients ||= []) << client
    sink.telemetry.dropped(:queue, 10)
    sink.telemetry.dropped(:writer, 20)
    report = client.aggregating_core.instance_variable_get(:@report)
    lines = []
    report.each_message(force: true) { |line| lines << line[/client\.(\w+:\d+)\|c\|#client:weir-ruby,/, 1] }
    expected = %w[packets_dropped:2 bytes_dropped:30 packets_dropped_queue:1 bytes_dropped_queue:10
                  packets_dropped_writer:1 bytes_dropped_writer:20]
    assert_empty expected - lines
  end

  def test_reports_are_sent_by_the_flush_thread
    server = udp_server
    sink = StatsD::Instrument::BatchedSink.for_addr(server.address)
    telemetry = StatsD::Instrument::TelemetryReport.new(sink.telemetry, tags: "x", interval: 0.001)
    aggregator = StatsD::Instrument::Aggregator.new(
      sink, StatsD::Instrument::DogStatsDDatagramBuilder, nil, nil,
      flush_interval: 0.005, telemetry: sink.telemetry, report: telemetry
    )
    aggregator.core.ensure_running
    wait_until("a report") { server.lines.any? { |line| line.start_with?("datadog.dogstatsd.client.bytes_sent:") } }
  ensure
    aggregator.core.shutdown
    sink.shutdown
  end
end

class OriginDetectionTest < TestCase
  ID = "0123456789abcdef" * 4

  def container_id(files)
    Dir.mktmpdir do |root|
      files.each do |path, content|
        file = File.join(root, path)
        FileUtils.mkdir_p(File.dirname(file))
        content == :directory ? FileUtils.mkdir_p(file) : File.write(file, content)
      end
      return StatsD::Instrument::OriginDetection.new(root: root).container_id, root
    end
  end

  def check(expected, files)
    found, = container_id(files)
    expected.nil? ? assert_nil(found) : assert_equal(expected, found)
  end

  def test_ids_in_cgroups
    check ID, "proc/self/cgroup" => "12:memory:/docker/#{ID}\n"
    check ID, "proc/self/cgroup" => "0::/system.slice/docker-#{ID}.scope\n"
    check "34dc0b5e626f2c5c4c5170e34b10e765-1234567890",
          "proc/self/cgroup" => "9:x:/ecs/55091c13/34dc0b5e626f2c5c4c5170e34b10e765-1234567890\n"
    check "7b8952daecf4c0e44bbcefe1b5c5ebc7-a"[0, 0].then { nil }, "proc/self/cgroup" => "0::/user.slice\n"
    uuid = "edfa1a4c-5c5e-4d5b-8b6d-0123456789ab"
    check uuid, "proc/self/cgroup" => "1:name=systemd:/garden/#{uuid}\n"
    check nil, {}
  end

  def test_ids_in_mounts
    mount = ->(path) { "605 569 254:1 #{path} /etc/hostname rw - ext4 /dev/vda1 rw\n" }
    check ID, "proc/self/mountinfo" => mount.call("/docker/containers/#{ID}/hostname")
    check nil, "proc/self/mountinfo" => mount.call("/containerd/io/sandboxes/#{ID}/hostname")
    check nil, "proc/self/mountinfo" => mount.call("/docker/containers/#{ID}/resolv.conf")
  end

  def test_inodes_of_cgroups
    found, = container_id("proc/self/cgroup" => "0::/\n", "sys/fs/cgroup" => :directory)
    assert_match(/\Ain-\d+\z/, found)
    found, = container_id("proc/self/cgroup" => "4:memory:/a\n0::/\n", "sys/fs/cgroup/memory/a" => :directory)
    assert_match(/\Ain-\d+\z/, found)
  end
end
