# frozen_string_literal: true

module Weir
  # Parts of {Datadog::Statsd}.
  module Dogstatsd
    # Messages with the names that dogstatsd-ruby sends.
    # @api private
    class Builder < StatsD::Instrument::DogStatsDDatagramBuilder
      protected

      # Names of classes are separated with dots.
      def generate_generic_datagram(name, ...)
        text = name.to_s
        super(text.include?("::") ? text.gsub("::", ".") : text, ...)
      end

      private

      # The agent decides about a status that the client does not know.
      def check_status(status)
        Integer === status ? status : StatsD::Instrument::Wire.field(status)
      end
    end

    # Reports with the names, the order and the tags of dogstatsd-ruby.
    # @api private
    class Report < StatsD::Instrument::TelemetryReport
      NAMES = %i[metrics events service_checks bytes_sent bytes_dropped bytes_dropped_queue bytes_dropped_writer
                 packets_sent packets_dropped packets_dropped_queue packets_dropped_writer].freeze
      # Bytes of a message without tags: the longest name, ten digits and what is between them.
      LONGEST = 64

      # @return [Integer] bytes in the longest message
      attr_reader :size

      def initialize(telemetry, tags:, fields:, interval:)
        @size = LONGEST + tags.bytesize + fields.to_s.bytesize
        super(telemetry, tags: tags, fields: fields, interval: interval, names: NAMES)
      end

      # Asks for a report with the next flush.
      # @return [void]
      def request
        @requested = true
        super
      end

      # @return [Boolean] whether somebody asked for the next report
      def requested?
        @requested || false
      end

      # (see StatsD::Instrument::TelemetryReport#each_message)
      def each_message(...)
        super.tap { |done| @requested = false if done }
      end
    end

    # A client that reports about itself as dogstatsd-ruby does.
    # @api private
    class Client < StatsD::Instrument::Client
      # @return [Report, nil]
      attr_reader :report

      # @param telemetry_interval [Numeric, nil] seconds; nil for no reports
      # @param transport_type [Symbol]
      def initialize(telemetry_interval: nil, transport_type: nil, **options)
        @telemetry_interval = telemetry_interval
        @transport_type = transport_type
        threaded = options[:sink].is_a?(StatsD::Instrument::BatchedSink)
        super(telemetry: threaded && !telemetry_interval.nil?, **options)
        options[:sink].report = telemetry_report(telemetry) unless threaded || telemetry_interval.nil?
      end

      # (see StatsD::Instrument::Client#flush)
      def flush(sync: false)
        # Only reports wait there.
        @aggregator&.core&.flush unless wants_aggregation?
        super
      end

      # @param truncate [Boolean] whether to shorten the text of an event that is too long, instead of raising
      # @param limit [Integer] bytes
      # @raise [RuntimeError] if the event is too long
      def send_event(title, text, truncate, limit, cardinality, **options)
        return refuse(title, text) if title.nil? || title.to_s.empty?

        builder = datagram_builder(no_prefix: true, cardinality: cardinality)
        message = builder._e(title, text, **options)
        excess = message.bytesize - limit
        if excess.positive?
          raise "the event #{title.inspect} has #{message.bytesize} bytes, #{excess} too many" unless truncate

          message = builder._e(title, shortened(text, excess), **options)
        end
        emit(message)
      end

      private

      # @return [String] the text without its end, which nobody could read in part: neither half a letter, nor half an
      #   escaped newline
      def shortened(text, excess)
        escaped = StatsD::Instrument::Wire.escape_newlines(text)
        left = escaped.bytesize - excess
        raise "the event is too long without its text, too" if left.negative?

        escaped.byteslice(0, left).scrub("").delete_suffix("\\")
      end

      def telemetry_report(telemetry)
        tags = ["client:ruby", "client_version:#{Datadog::Statsd::VERSION}", "client_transport:#{@transport_type}",
                StatsD::Instrument::Wire.tags(@default_tags)]
        @report = Report.new(telemetry, tags: tags.compact.join(","), fields: fields(@cardinality),
                                        interval: @telemetry_interval)
      end
    end
  end
end
