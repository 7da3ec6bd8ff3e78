# frozen_string_literal: true

module StatsD
  module Instrument
    class Client
      # The metrics of a client: one method for each type, and what times a block.
      #
      # Each method tries its short way first, which finds the context of the call and records the value. Whatever that
      # does not cover goes through {Recording}.
      module Metrics
        # Counts something.
        #
        # @param name [String] without `:`, `|`, `@` and newlines, which become `_`
        # @param value [Integer, Float] the amount to add
        # @param sample_rate [Float, nil] 0.0 to 1.0: the share of calls that is sent; the server scales the sum up
        # @param tags [Hash, Array<String>, String, Symbol, nil] never modified; `|`, `,` and newlines are removed
        # @param no_prefix [Boolean] whether to leave the client's prefix out
        # @param by [Integer, Float, nil] replaces `value`
        # @param pre_sampled [Boolean] the caller has drawn already: send always, mention the rate
        # @param cardinality [String, Symbol, nil] one of {CARDINALITIES}
        # @param timestamp [Time, Integer, nil] when it was counted; such counts are not aggregated
        # @return [Object] {VOID}
        def increment(name, value = 1, sample_rate: nil, tags: nil, no_prefix: false, by: nil, pre_sampled: false,
                      cardinality: nil, timestamp: nil)
          unless no_prefix || by || cardinality || timestamp || (sample_rate && sample_rate < 1)
            done = @counters.put(name, tags, value)
            return VOID if done
            return refuse(name, value) if done == false
          end
          if timestamp
            return stamped(:c, name, by || value, tags, no_prefix, cardinality, timestamp, pre_sampled && sample_rate)
          end

          record(:c, name, by || value, sample_rate, tags, no_prefix, pre_sampled, cardinality)
        end

        # Counts backwards.
        #
        # @param name (see #increment)
        # @param value [Integer, Float] the amount to subtract
        # @param by [Integer, Float, nil] replaces `value`
        # @param options (see #increment)
        # @return (see #increment)
        def decrement(name, value = 1, by: nil, **options)
          increment(name, -(by || value), **options)
        end

        # Counts any amount; {#increment} with the amount required.
        #
        # @param name (see #increment)
        # @param value (see #increment)
        # @param options (see #increment)
        # @return (see #increment)
        def count(name, value, **options)
          increment(name, value, **options)
        end

        # Records the current value of something; the next value replaces it.
        #
        # @param name (see #increment)
        # @param value [Numeric] a finite number
        # @param sample_rate [Float, nil] has no effect when the client aggregates
        # @param tags (see #increment)
        # @param no_prefix (see #increment)
        # @param pre_sampled (see #increment)
        # @param cardinality (see #increment)
        # @param timestamp [Time, Integer, nil] when it was measured; such values are not aggregated
        # @return (see #increment)
        def gauge(name, value, sample_rate: nil, tags: nil, no_prefix: false, pre_sampled: false, cardinality: nil,
                  timestamp: nil)
          unless no_prefix || cardinality || timestamp || (sample_rate && !@mode.core)
            done = @gauges.put(name, tags, value)
            return VOID if done
            return refuse(name, value) if done == false
          end
          return stamped(:g, name, value, tags, no_prefix, cardinality, timestamp, nil) if timestamp

          record(:g, name, value, sample_rate, tags, no_prefix, pre_sampled, cardinality)
        end

        # Records a duration in milliseconds, or the duration of the block.
        #
        # @param name (see #increment)
        # @param value [Numeric, nil] milliseconds; ignored when a block is given
        # @param sample_rate (see #increment)
        # @param tags (see #increment)
        # @param no_prefix (see #increment)
        # @param pre_sampled (see #increment)
        # @param cardinality (see #increment)
        # @yield the work to time; it is timed, too, when it raises
        # @return the block's value, or {VOID}
        def measure(name, value = nil, sample_rate: nil, tags: nil, no_prefix: false, pre_sampled: false,
                    cardinality: nil, &block)
          if block_given?
            return time_block(:ms, name, sample_rate, tags, no_prefix, pre_sampled, cardinality, &block)
          end

          unless no_prefix || cardinality || (sample_rate && sample_rate < 1)
            done = @timings.put(name, tags, value)
            return VOID if done
            return refuse(name, value) if done == false
          end
          record(:ms, name, value, sample_rate, tags, no_prefix, pre_sampled, cardinality)
        end

        # Records a value whose distribution is computed over all servers, or the duration of the block
        # in milliseconds.
        #
        # @param name (see #increment)
        # @param value [Numeric, nil] ignored when a block is given
        # @param sample_rate (see #increment)
        # @param tags (see #increment)
        # @param no_prefix (see #increment)
        # @param pre_sampled (see #increment)
        # @param cardinality (see #increment)
        # @yield (see #measure)
        # @return (see #measure)
        # @raise [NotImplementedError] if the implementation has no distributions
        def distribution(name, value = nil, sample_rate: nil, tags: nil, no_prefix: false, pre_sampled: false,
                         cardinality: nil, &block)
          if block_given?
            return time_block(:d, name, sample_rate, tags, no_prefix, pre_sampled, cardinality, &block)
          end

          unless no_prefix || cardinality || (sample_rate && sample_rate < 1)
            done = @distributions.put(name, tags, value)
            return VOID if done
            return refuse(name, value) if done == false
          end
          record(:d, name, value, sample_rate, tags, no_prefix, pre_sampled, cardinality)
        end

        # Records a value whose distribution is computed by the agent of this host.
        #
        # @param name (see #increment)
        # @param value [Numeric] a finite number
        # @param sample_rate (see #increment)
        # @param tags (see #increment)
        # @param no_prefix (see #increment)
        # @param pre_sampled (see #increment)
        # @param cardinality (see #increment)
        # @return (see #increment)
        # @raise [NotImplementedError] if the implementation has no histograms
        def histogram(name, value, sample_rate: nil, tags: nil, no_prefix: false, pre_sampled: false, cardinality: nil)
          unless no_prefix || cardinality || (sample_rate && sample_rate < 1)
            done = @histograms.put(name, tags, value)
            return VOID if done
            return refuse(name, value) if done == false
          end
          record(:h, name, value, sample_rate, tags, no_prefix, pre_sampled, cardinality)
        end

        # Counts distinct values.
        #
        # @param name (see #increment)
        # @param value [#to_s] the member to count; `|` and newlines are removed
        # @param sample_rate (see #increment)
        # @param tags (see #increment)
        # @param no_prefix (see #increment)
        # @param pre_sampled (see #increment)
        # @param cardinality (see #increment)
        # @return (see #increment)
        def set(name, value, sample_rate: nil, tags: nil, no_prefix: false, pre_sampled: false, cardinality: nil)
          unless no_prefix || cardinality || (sample_rate && sample_rate < 1)
            done = @sets.put(name, tags, value)
            return VOID if done
            return refuse(name, value) if done == false
          end
          record(:s, name, value, sample_rate, tags, no_prefix, pre_sampled, cardinality)
        end

        # Records the duration of the block, in milliseconds with fractions.
        #
        # @param name (see #increment)
        # @param metric_type [Symbol, nil] `:ms`, `:d` or `:h`; nil: `:d` for DogStatsD, `:ms` for StatsD
        # @param sample_rate (see #increment)
        # @param tags (see #increment)
        # @param no_prefix (see #increment)
        # @yield (see #measure)
        # @return the block's value
        def latency(name, sample_rate: nil, tags: nil, metric_type: nil, no_prefix: false, &block)
          metric_type ||= datagram_builder(no_prefix: no_prefix).latency_metric_type
          time_block(metric_type, name, sample_rate, tags, no_prefix, false, nil, &block)
        end

        # Records a duration in milliseconds; {#measure} with the value required.
        # @return (see #increment)
        def timing(name, value, **options)
          measure(name, value, **options)
        end

        # Records the duration of the block as a timing; fractions of a millisecond are kept.
        # @return the block's value
        def time(name, **options, &block)
          raise LocalJumpError, "time needs a block" unless block

          measure(name, **options, &block)
        end

        # Records the duration of the block as a distribution; fractions of a millisecond are kept.
        # @return the block's value
        def distribution_time(name, **options, &block)
          raise LocalJumpError, "distribution_time needs a block" unless block

          distribution(name, **options, &block)
        end

        private

        # Counts and gauges that say when they were taken. They are never sampled here; the caller may have done so.
        def stamped(type, name, value, tags, no_prefix, cardinality, timestamp, rate)
          seconds = timestamp.to_i
          text = Wire.number(value)
          return refuse(name, value) if text.nil? || name.to_s.empty? || seconds <= 0

          builder = datagram_builder(no_prefix: no_prefix, cardinality: cardinality)
          datagram = builder.public_send(type, name, text, rate || nil, tags)
          datagram << "|T#{seconds}" unless builder.is_a?(StatsDDatagramBuilder)
          emit(datagram)
        end

        def time_block(type, name, sample_rate, tags, no_prefix, pre_sampled, cardinality)
          return yield unless pre_sampled || counts?(sample_rate)

          start = Process.clock_gettime(Process::CLOCK_MONOTONIC, :float_millisecond)
          begin
            yield
          ensure
            # The clock counts nanoseconds; digits beyond are noise that takes long to print.
            elapsed = (Process.clock_gettime(Process::CLOCK_MONOTONIC, :float_millisecond) - start).round(6)
            unless no_prefix || cardinality || (sample_rate && sample_rate < 1)
              done = @mode.short_ways[type].put(name, tags, elapsed)
            end
            record(type, name, elapsed, sample_rate, tags, no_prefix, true, cardinality) unless done
          end
        end
      end
    end
  end
end
